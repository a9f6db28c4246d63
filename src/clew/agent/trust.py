"""Which setups this user made or agreed to on this machine. A setup is the options with which the command line makes a
thread's agent: tools, MCP commands, folder, permissions, system prompt.

A setup is stored in the thread's log, so everybody who can write to the store can write one. What the log says about its
author proves nothing. So the digests of the setups that this user agreed to are kept in a file of the user's own, outside
of every store. Each line of this file has two digests, that of the random id of a thread's log and that of the whole
setup:

    LOG SETUP

An archive that is imported gets a new log, so a setup is agreed to for one thread and never for a copy that somebody else
made of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec
from blake3 import blake3

from clew._runtime.files import lock, make_private_folder, sync, unlock, write_all
from clew.agent.settings import Setup
from clew.errors import UsageError

__all__ = ["carry_trust", "is_trusted", "remember_setups", "setup_digest", "setup_facts", "trust_file"]

_DOMAIN = b"clew-setup\n"
_PERMISSIONS = {
    "read": "read (look at files)",
    "edit": "edit (look at files and change them)",
    "full": "full (look at files, change them, and run any command)",
}


def trust_file() -> Path:
    """Return the path of the file with the digests of the setups that this user agreed to. A setup is the options with
    which the command line makes a thread's agent. The file is in the platform's folder for a user's state, and may not
    exist."""
    named = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(named):
        folder = Path(named)
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        folder = Path.home() / ".local" / "state"
    return folder / "clew" / "trusted-setups"


def setup_digest(setup: Setup) -> str:
    """Return the digest, in hex, of a setup: the options with which the command line makes a thread's agent. Setups
    that differ in anything have different digests."""
    return blake3(_DOMAIN + msgspec.json.encode(msgspec.to_builtins(setup), order="sorted")).hexdigest()


def is_trusted(log_id: str, setup: Setup) -> bool:
    """Return whether this user made this setup on this machine, or agreed to it, for the log with this random id. A
    setup is the options with which the command line makes a thread's agent.

    Raises `UsageError` if other users can change the file of trusted setups.
    """
    return (_log_digest(log_id), setup_digest(setup)) in _kept()


def remember_setups(log_id: str, setups: Collection[Setup]) -> None:
    """Record on this machine that this user made these setups, or agreed to them, for the log with this random id. A
    setup is the options with which the command line makes a thread's agent. When this returns, the record is durable.
    Raises `OSError` if the file of trusted setups cannot be written."""
    log = _log_digest(log_id)
    _add((log, setup_digest(setup)) for setup in setups)


def carry_trust(logs: Iterable[tuple[str, str]]) -> None:
    """Record that this user trusts the same setups for a new log as for the old log, after the user made a fork or a
    copy of the old log on this machine. A setup is the options with which the command line makes a thread's agent.
    `logs` has pairs of random log ids: that of the old log and that of the new one. Raises `OSError` if the file of
    trusted setups cannot be written."""
    kept = _kept()
    by_log: dict[str, list[str]] = {}
    for log, setup in kept:
        by_log.setdefault(log, []).append(setup)
    _add((_log_digest(new), setup) for old, new in logs for setup in by_log.get(_log_digest(old), ()))


def _log_digest(log_id: str) -> str:
    return blake3(log_id.encode("utf-8", "surrogatepass")).hexdigest(16)


def _kept() -> set[tuple[str, str]]:
    """Read the file of trusted setups, and return its pairs: the digest of a log's id, and the digest of a setup that
    is trusted for this log. Raises `UsageError` if other users can change the file."""
    path = trust_file()
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if sys.platform != "win32" and (facts.st_uid != os.geteuid() or facts.st_mode & 0o022):
                raise UsageError(
                    f"other users can change {path}, so it cannot say which setups you agreed to. Delete it: you are "
                    "asked again then."
                )
            text = file.read().decode("ascii", "replace")
    except FileNotFoundError:
        return set()
    words = (line.split() for line in text.splitlines())
    return {(line[0], line[1]) for line in words if len(line) == 2}


def _add(pairs: Iterable[tuple[str, str]]) -> None:
    """Append these pairs, the digests of a log's id and of a setup, to the file of trusted setups, except those that it
    has already. If a crash left the last line of the file incomplete, a line break is written first, so that the new
    pairs begin on a line of their own."""
    new = sorted(set(pairs) - _kept())
    if not new:
        return
    path = trust_file()
    make_private_folder(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        lock(fd, path, shared=False)
        end = os.lseek(fd, 0, os.SEEK_END)
        os.lseek(fd, max(0, end - 1), os.SEEK_SET)
        torn = b"\n" if end and os.read(fd, 1) != b"\n" else b""
        write_all(fd, torn + "".join(f"{log} {setup}\n" for log, setup in new).encode())
        sync(fd)
        unlock(fd)
    finally:
        os.close(fd)


def setup_facts(setup: Setup) -> list[tuple[str, str]]:
    """Describe everything that a setup lets an agent do, for a person who has to agree to it. A setup is the options
    with which the command line makes a thread's agent. Returns pairs of an option's name and its text, in which each
    tool and each MCP server has a line of its own. No text is shortened, and empty options are left out. But if the
    agent has a folder to work in, its permissions are always included, because without a setting it may edit files
    there."""
    works_in = setup.workspace or (setup.folder if setup.provider else "")
    permissions = setup.permissions or ("edit" if works_in else "")
    limits = [f"{value:g} {name}" if isinstance(value, float) else f"{value} {name}" for name, value in _limits(setup)]
    facts = [
        ("agent", setup.name),
        ("provider", setup.provider),
        ("model", setup.model),
        ("tools", "\n".join(setup.tools)),
        ("MCP servers", "\n".join(setup.mcp)),
        ("folder", setup.folder),
        ("workspace", setup.workspace),
        ("permissions", _PERMISSIONS.get(permissions, permissions)),
        ("limits", ", ".join(limits)),
        ("tools it had", ", ".join(setup.supplies)),
        ("system prompt", setup.system),
    ]
    return [(name, text) for name, text in facts if text]


def _limits(setup: Setup) -> list[tuple[str, int | float]]:
    turns = [] if setup.max_turns is None else [("turns", setup.max_turns)]
    return [*turns, *setup.budget.limits.items()]
