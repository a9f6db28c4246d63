"""The conversations on this machine, by the ends of their rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clew.providers.base import NativeSession, values
from clew.providers.codex.homes import key_of, newest_first
from clew.providers.codex.prompts import is_prompt, text_of, title_of
from clew.providers.codex.rollout import head_of, moment_of, record_of

__all__ = ["list_sessions", "names"]

_HEAD = 131_072
"""Enough for Codex's own instructions, the user's, and the first prompt."""


def list_sessions(home: Path) -> Iterator[NativeSession]:
    """Newest first. Sub-agents are parts of the conversations that started them, and are left out."""
    titles = names(home)
    for changed, size, path in newest_first(home):
        session = _session(path, changed, size, titles)
        if session is not None:
            yield session


def _session(path: Path, changed: float, size: int, titles: dict[str, str]) -> NativeSession | None:
    try:
        head = head_of(path, _HEAD)
    except FileNotFoundError:
        return None
    complete = len(head) < _HEAD
    meta: dict[str, Any] = {}
    title, turns = "", 0
    for row in head.split(b"\n"):
        record = record_of(row) or {}
        payload = values(record.get("payload"))
        if record.get("type") == "session_meta" and not meta:
            meta = payload
            if isinstance(meta.get("source"), dict) or meta.get("parent_thread_id"):
                return None
        elif record.get("type") == "response_item" and is_prompt(payload):
            title, turns = title or title_of(text_of(payload)), turns + 1
            if not complete:
                break
    key = key_of(path) or ""
    return NativeSession(
        provider="codex",
        key=key,
        path=path,
        cwd=str(meta.get("cwd") or ""),
        title=titles.get(key) or title,
        turns=turns if complete else None,
        created_at=moment_of(meta.get("timestamp")),
        updated_at=datetime.fromtimestamp(changed, UTC),
        size=size,
    )


def names(home: Path) -> dict[str, str]:
    """The names that users gave to conversations, the newest of each."""
    try:
        data = (home / "session_index.jsonl").read_bytes()
    except FileNotFoundError:
        return {}
    given = [record for row in data.split(b"\n") if (record := record_of(row)) is not None]
    return {str(record.get("id")): str(record["thread_name"]) for record in given if record.get("thread_name")}
