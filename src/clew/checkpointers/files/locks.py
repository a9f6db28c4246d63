"""Locks the files of a file store, and waits for locks that others hold, without keeping OS threads waiting."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from clew._runtime import files
from clew._runtime.aio import PutOff
from clew.errors import Unavailable

__all__ = ["Call", "FileLocks"]

_NAPS = (0.0005, 0.001, 0.002, 0.004)
"""Seconds between the first attempts to lock a file. Most holders need the lock for no longer than one sync."""
_SHORTEST, _LONGEST = 0.025, 0.25
"""Seconds between later attempts: a tenth of the time that the call has waited, within these limits."""


class Call:
    """One call of a store: when it was made, and whether it has already waited for a lock."""

    __slots__ = ("has_waited", "since")

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.has_waited = False


class FileLocks:
    """Locks files for the calls of one store. A call that waits for a lock fails after `seconds` without progress.

    The time counts from when the call was made, so that a call that waited in a queue has less of it left, and calls
    that wait for the same lock fail together. A file that was written to lately shows progress: whoever holds its lock
    is alive. So a call raises `Unavailable` when `seconds` have passed both since it was made and since the file was
    written to.

    A call waits for a few milliseconds on its OS thread. After that it raises `PutOff`, which means that the call is to
    be tried again later. Meanwhile the OS thread is free for calls that need no lock, or a lock on another file.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._here = threading.local()

    def work_for(self, call: Call) -> None:
        """Note that this OS thread now works for `call`. How long it may wait for a lock is then counted from when that
        call was made."""
        self._here.call = call

    def lock(self, fd: int, path: str | Path, *, shared: bool) -> None:
        """Lock this open file. Several locks with `shared=True` can be held on a file at the same time; a lock with
        `shared=False` excludes all others. If another lock is in the way, raises `PutOff`, so that the caller tries
        again later. Raises `Unavailable` instead if the call has waited for `seconds`, the time that this object was
        made with, and nobody has written to the file meanwhile. `path` names the file in the error."""
        if files.try_lock(fd, shared=shared):
            return
        call: Call = self._here.call
        for nap in () if call.has_waited else _NAPS:
            time.sleep(nap)
            if files.try_lock(fd, shared=shared):
                return
        call.has_waited = True
        waited = time.monotonic() - call.since
        left = self._seconds - min(waited, _age(fd))
        if left <= 0:
            raise Unavailable(
                f"{path}: another process held its lock and wrote nothing for {self._seconds:g} s. Try again, or end that "
                "process."
            )
        raise PutOff(min(left, max(_SHORTEST, min(_LONGEST, waited / 10))))


def _age(fd: int) -> float:
    """Return how many seconds ago this open file was last written to. Returns infinity for a time in the future: the
    clock was set, and the time says nothing."""
    age = time.time() - os.fstat(fd).st_mtime
    return age if age >= 0 else float("inf")
