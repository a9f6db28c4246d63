"""The target `native`: sessions of other programs, in the files in which these programs keep them.

The files are in memory where the system has such a place. What is done with them is what `clew sessions` and `clew adopt`
do: list, find, export, read, and put back on another machine.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import zstandard

from clew.errors import ClewError
from clew.providers.base import Place
from clew.providers.claude_code import ClaudeCode
from clew.providers.claude_code import convert as claude_code
from clew.providers.claude_code.storage import project_dir
from clew.providers.codex import convert as codex
from clew.providers.codex.storage import _session
from clew.providers.opencode import OpenCode
from clew.providers.opencode.convert import stored
from clew.providers.opencode.database import database_path, decode
from tests.providers.opencode.kept import ANSWERED, FIXTURES

__all__ = ["FORMS", "native", "small_database"]

_COLUMNS = {"id", "session_id", "time_created", "time_updated", "data"}
"""The columns that Clew requires of a row before it reads it."""
_META = b'{"timestamp":"2026-11-15T17:34:54.000Z","type":"session_meta","payload":{"id":"k","cwd":"/w"}}\n'
_NAME = "rollout-2026-11-15T17-34-54-01a1e046-ba6d-71e2-b079-7545841cc99b.jsonl"
_KEY, _OTHER = "01a1e046-ba6d-41e2-b079-7545841cc99b", "02b2e046-ba6d-41e2-b079-7545841cc99b"


@functools.cache
def _memory() -> Path:
    """A folder in memory, where the system has such a place, for what is read by its path."""
    return Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


def _machine(name: str) -> Place:
    root = _memory() / name
    for folder in ("home", "work"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    return Place(root / "work", {"HOME": str(root / "home"), "PATH": ""})


def _rollout(data: bytes) -> None:
    """A rollout of Codex, after a first line that is sound."""
    file = _memory() / _NAME
    file.write_bytes(_META + data)
    _read_rollout(file)


def _packed_rollout(data: bytes) -> None:
    """A rollout that Codex has compressed: as it came, and these bytes compressed."""
    file = _memory() / f"{_NAME}.zst"
    for packed in (data, zstandard.compress(_META + data)):
        file.write_bytes(packed)
        _read_rollout(file)


def _read_rollout(file: Path) -> None:
    with contextlib.suppress(ClewError):
        codex.read(file)
    _session(file, 0.0, file.stat().st_size, {})


def _claude(data: bytes) -> None:
    """A session file of Claude Code."""
    file = _memory() / _NAME
    file.write_bytes(data)
    with contextlib.suppress(ClewError):
        claude_code.read(file)


def _sub_agents(data: bytes) -> None:
    """Files of Claude Code: up to an empty line the session, after it the rows of its sub-agent. They are exported, read,
    and put on another machine under another key."""
    here, there = ClaudeCode(_machine("here")), ClaudeCode(_machine("there"))
    own, _, of_agent = data.partition(b"\n\n")
    beside = project_dir(here.place) / _KEY / "subagents"
    beside.mkdir(parents=True, exist_ok=True)
    (project_dir(here.place) / f"{_KEY}.jsonl").write_bytes(own)
    (beside / "agent-a1.jsonl").write_bytes(of_agent)
    folder = _memory() / "exported"
    try:
        with contextlib.suppress(ClewError):
            list(here.sessions())
            if here.export(_KEY, folder):
                here.standing(_KEY, folder)
                there.install_session(_OTHER, folder)
                here.read(folder)
    finally:
        for left in (folder, there.place.home):
            shutil.rmtree(left, ignore_errors=True)


def _rows(data: bytes) -> None:
    """Rows of opencode, as an export folder has them."""
    for line in data.split(b"\n"):
        with contextlib.suppress(ClewError):
            _, row = decode(line, "a line")
            if row.keys() >= _COLUMNS:
                stored(row, [row])


def _database(data: bytes) -> None:
    """opencode's SQLite file. It is read, and a sound session is written into it."""
    here = OpenCode(_machine("opencode"))
    path = database_path(here.place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    folder = _memory() / "from-opencode"
    try:
        with contextlib.suppress(ClewError):
            list(here.sessions())
        with contextlib.suppress(ClewError):
            here.find(ANSWERED)
            if here.export(ANSWERED, folder):
                here.read(folder)
        with contextlib.suppress(ClewError):
            here.install_session(ANSWERED, _sound())
    finally:
        for left in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            left.unlink(missing_ok=True)
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _sound() -> Path:
    """An export folder with a session as opencode left it."""
    machine, folder = OpenCode(_machine("sound")), _memory() / "sound-export"
    path = database_path(machine.place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(small_database())
    assert machine.export(ANSWERED, folder)
    return folder


@functools.cache
def small_database() -> bytes:
    """opencode's SQLite file with one session, in pages as small as can be."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA page_size = 512")
    connection.executescript((FIXTURES / "database.sql").read_text())
    kept = ("project", "session", "message", "part", "todo", "migration")
    for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        if table not in kept:
            connection.execute(f'DROP TABLE "{table}"')
    for table, column in (("part", "session_id"), ("message", "session_id"), ("todo", "session_id"), ("session", "id")):
        connection.execute(f"DELETE FROM {table} WHERE {column} <> ?", (ANSWERED,))
    connection.execute("VACUUM")
    return connection.serialize()


FORMS: tuple[Callable[[bytes], None], ...] = (_rollout, _claude, _rows, _packed_rollout, _sub_agents, _database)


def native(data: bytes) -> None:
    """A session of Codex, Claude Code or opencode, in one of the forms in which these keep it. The first byte says in
    which."""
    FORMS[data[0] % len(FORMS) if data else 0](data[1:])
