"""Another process that holds locks of a store on this machine's disk, and stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from clew.checkpointers import Checkpointer

__all__ = ["LOCKING_FILES", "LOCKING_SQLITE", "LockedStore", "lock_holder"]

LOCKING_SQLITE = """
import apsw
db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(60_000)
db.execute(sys.argv[2])
"""
"""Locks a SQLite file with a statement such as BEGIN IMMEDIATE. The arguments are the file and the statement."""
LOCKING_FILES = """
import fcntl
held = []
for path in sys.argv[1:]:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    held.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    fcntl.flock(held[-1], fcntl.LOCK_EX)
"""
"""Locks the files that are its arguments, and creates those that are missing."""
_AND_STOPS = """
print("held", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def lock_holder(script: str, arguments: Sequence[str | Path]) -> Iterator[None]:
    """Let another process take locks, as one of the scripts of this module does, and stand still while the block runs."""
    whole = f"import os, signal, sys\n{script}{_AND_STOPS}"
    holder = subprocess.Popen([sys.executable, "-c", whole, *map(str, arguments)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()


class LockedStore:
    """A store on this machine's disk, which another process can lock with a script of this module."""

    def __init__(
        self,
        store: Checkpointer,
        script: str,
        arguments: Sequence[str | Path],
        *,
        timeout: float,
        answering: Collection[str],
    ) -> None:
        self.store = store
        self.timeout = timeout
        self.answering = answering
        self._given = script, arguments
        self._held = lock_holder(*self._given)

    def freeze(self) -> None:
        self._held = lock_holder(*self._given)
        self._held.__enter__()

    def thaw(self) -> None:
        self._held.__exit__(None, None, None)
