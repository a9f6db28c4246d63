"""What one turn used and cost. Codex prints what the whole thread has used so far; its rollouts tell the rest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from clew.log import Usage
from clew.models.prices import cost_of
from clew.providers.base import values
from clew.providers.codex.homes import locate
from clew.providers.codex.rollout import Record, contents, lines_from_end, record_of

__all__ = ["Meter", "Spent", "usage_of"]


class Spent(msgspec.Struct, frozen=True):
    usage: Usage | None = None
    cost_usd: float | None = None
    model: str = ""
    error: Any = None
    """What the rollout says of why the turn failed."""


class Meter:
    """Made before the program starts: it knows what was used until then, and where the rollout's new part begins."""

    def __init__(self, home: Path, key: str) -> None:
        self._home = home
        self._key = key
        path = locate(home, key)
        self._before = _total(path) if path else Usage()
        self._from = 0 if path is None else len(contents(path)) if path.suffix == ".zst" else path.stat().st_size

    def read(self, reported: Usage | None, children: Iterable[str], model: str) -> Spent:
        """What has come since, now that the program has ended. `reported` is what it printed for the thread, `children` are
        the sub-agents that were at work, each with a rollout of its own, and `model` is the one asked for."""
        path = locate(self._home, self._key)
        turn = _Turn(contents(path, self._from), "") if path else _Turn(b"", "")
        total = reported or turn.total
        usage = None if total is None else _minus(total, self._before)
        parts = [turn.parts if usage is None or turn.used == usage else [(turn.model, usage)]]
        for child in children:
            other = locate(self._home, child) if child != self._key and turn.id else None
            if other is not None:
                parts.append(_Turn(contents(other), turn.id).parts)
        spent = [part for some in parts for part in some]
        if not spent:
            return Spent(usage, None, turn.model or model, turn.error)
        costs = [cost_of([name for name in (named, model) if name], used) for named, used in spent]
        known = [cost for cost in costs if cost is not None]
        cost = sum(known) if len(known) == len(costs) else None
        return Spent(_sum(used for _, used in spent), cost, turn.model or model, turn.error)


class _Turn:
    """What a part of a rollout says of one turn, or of those that were done for it: then it is named by `root`."""

    def __init__(self, data: bytes, root: str) -> None:
        self.id = ""
        self.model = ""
        self.parts: list[tuple[str, Usage]] = []
        """A model and what one of its responses used."""
        self.total: Usage | None = None
        self.error: Any = None
        for row in data.split(b"\n"):
            record = record_of(row)
            if record is not None:
                self._take(record, values(record.get("payload")), root)

    def _take(self, record: Record, payload: Record, root: str) -> None:
        kind = payload.get("type") if record.get("type") == "event_msg" else record.get("type")
        if kind == "turn_context":
            self.model = str(payload.get("model") or self.model)
        elif kind == "token_usage_record":
            if not root or payload.get("root_turn_id") == root:
                self.parts.append((self.model, usage_of(payload.get("usage"))))
        elif kind == "token_count":
            total = values(payload.get("info")).get("total_token_usage")
            self.total = usage_of(total) if total else self.total
        elif kind == "task_started":
            self.id = str(payload.get("turn_id") or "")
        elif kind == "task_complete":
            self.error = values(payload.get("error")).get("codex_error_info")

    @property
    def used(self) -> Usage:
        return _sum(usage for _, usage in self.parts)


def usage_of(value: Any) -> Usage:
    """Tokens as Codex counts them."""
    fields = values(value)
    names = (
        "input_tokens",
        "output_tokens",
        "cached_input_tokens",
        "cache_write_input_tokens",
        "reasoning_output_tokens",
    )
    counts = [fields.get(name) for name in names]
    return Usage(*(count if isinstance(count, int) and count > 0 else 0 for count in counts))


def _total(path: Path) -> Usage:
    """What a thread has used so far, by the last record that says so."""
    for row in lines_from_end(path):
        if b'"token_count"' in row or b'"token_usage_record"' in row:
            payload = values((record_of(row) or {}).get("payload"))
            total = values(payload.get("info")).get("total_token_usage") or payload.get("thread_token_usage")
            if total:
                return usage_of(total)
    return Usage()


def _minus(usage: Usage, other: Usage) -> Usage:
    pairs = zip(msgspec.structs.astuple(usage), msgspec.structs.astuple(other), strict=True)
    return Usage(*(max(0, more - less) for more, less in pairs))


def _sum(usages: Iterable[Usage]) -> Usage:
    rows = [msgspec.structs.astuple(usage) for usage in usages]
    return Usage(*map(sum, zip(*rows, strict=True))) if rows else Usage()
