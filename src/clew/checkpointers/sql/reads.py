"""Reading a log from a database, a stretch at a time: as much at once as memory takes, whatever the size of its frames."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from clew.checkpointers.sql.heads import MOST
from clew.errors import Corrupt

__all__ = ["Stretch", "read_frames"]

_FIRST, _BYTES, _MOST_ROWS = 256, 8 * 2**20, 10_000
"""Frames of the first stretch; bytes and frames of each that follows."""


class Stretch(NamedTuple):
    """What one query found: which log it is of, how many frames that has, and those that were asked for."""

    log: object
    length: int
    frames: list[bytes]


async def read_frames(
    fetch: Callable[[int, int], Awaitable[Stretch | None]], thread_id: str, where: str, start: int, stop: int | None
) -> list[bytes]:
    """The frames from `start` up to `stop`, all of one log. `fetch` gives those between two numbers; None if there is no
    such thread."""
    frames: list[bytes] = []
    log: object = None
    page = _FIRST
    while True:
        first = min(start, MOST) + len(frames)
        last = min(MOST if stop is None else stop, first + page)
        found = await fetch(first, last)
        if found is None:
            return []
        if log is not None and log != found.log:  # deleted and made again meanwhile
            frames.clear()
            log = None
            continue
        log = found.log
        if len(found.frames) != max(0, min(last, found.length) - first):
            raise Corrupt(f"thread {thread_id!r} in {where} lacks frames from {first} to {last}. Restore a copy.")
        frames += found.frames
        if first + page >= min(found.length, MOST if stop is None else stop):
            return frames
        page = max(16, min(_MOST_ROWS, _BYTES * len(found.frames) // (sum(map(len, found.frames)) + 1)))
