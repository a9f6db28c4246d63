"""Homes with what the real Codex has written and printed, by version."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from clew.providers.base import Place
from clew.providers.codex import Codex

__all__ = ["FIXTURES", "at_home", "keep", "lines", "rollout_line"]

FIXTURES = Path(__file__).parent / "fixtures" / "0.166.0"


def at_home(home: Path, **env: str) -> Codex:
    """Codex on a machine with this home and nothing else."""
    (home / "work").mkdir(parents=True, exist_ok=True)
    return Codex(Place(home / "work", {"HOME": str(home), "PATH": "", **env}))


def keep(home: Path, name: str, *, torn: bytes = b"") -> tuple[str, Path]:
    """Put a kept rollout into a home, as one that has not changed of late: its key, and its path."""
    data = (FIXTURES / name).read_bytes()
    key = json.loads(data.split(b"\n", 1)[0])["payload"]["id"]
    folder = home / ".codex/sessions/2026/11/15"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rollout-2026-11-15T17-34-54-{key}.jsonl"
    path.write_bytes(data + torn)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return str(key), path


def lines(name: str) -> list[bytes]:
    return (FIXTURES / name).read_bytes().splitlines(keepends=True)


def rollout_line(kind: str, payload: dict[str, Any]) -> bytes:
    return json.dumps({"timestamp": "2026-11-15T18:00:00.000Z", "type": kind, "payload": payload}).encode() + b"\n"
