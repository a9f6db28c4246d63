"""Locks on open files, between processes and between the threads of one: shared by readers, exclusive for one writer."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from clew.errors import Unavailable

__all__ = ["WAIT", "lock", "unlock"]

WAIT = 30.0
"""Seconds to wait for the other holders of a lock before a call is `Unavailable`."""
_FIRST_NAP = 0.0005
_LONGEST_NAP = 0.025

if sys.platform == "win32":
    import msvcrt
    from contextlib import suppress

    _BYTE = 2**31 - 2  # locks there also keep others from reading; so the byte locked is one no file reaches

    def _try(fd: int, shared: bool) -> bool:
        os.lseek(fd, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # knows no shared locks: readers take turns
        except PermissionError:
            return False
        return True

    def unlock(fd: int) -> None:
        os.lseek(fd, _BYTE, os.SEEK_SET)
        with suppress(OSError):  # unlocked already
            msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try(fd: int, shared: bool) -> bool:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(fd: int) -> None:
        """Let go at once. Closing alone would not: a child forked meanwhile may hold a copy of the descriptor."""
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock(fd: int, path: str | Path, *, shared: bool) -> None:
    """Wait for this lock; `Unavailable` naming the file if others hold it for too long."""
    nap = _FIRST_NAP
    deadline = time.monotonic() + WAIT
    while not _try(fd, shared):
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{path}: another process held its lock for {WAIT:.0f} s. Try again, or end that process."
            )
        time.sleep(nap)
        nap = min(nap * 1.5, _LONGEST_NAP)
