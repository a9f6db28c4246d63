"""Reads a thread's log from a database in pages, sized so that a page is neither too large for memory nor needlessly
small."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from clew.checkpointers.sql.heads import UNLIMITED
from clew.errors import Corrupt

__all__ = ["Stretch", "read_frames"]

_FIRST, _BYTES, _MOST_ROWS = 256, 8 * 2**20, 10_000
"""`_FIRST` is the most frames in the first page of a read. Each later page has as many frames as have about `_BYTES`
bytes in total, but at most `_MOST_ROWS`."""


class Stretch(NamedTuple):
    """The result of one query for frames of a log. `log` identifies the log, `length` is the number of frames in the
    whole log, and `frames` are the frames found."""

    log: object
    length: int
    frames: list[bytes]


async def read_frames(
    fetch: Callable[[int, int], Awaitable[Stretch | None]], thread_id: str, where: str, start: int, stop: int | None
) -> list[bytes]:
    """Return the frames of a thread from number `start` up to, not including, `stop`, or up to the end if `stop` is
    None. All are of the same log: if the thread is deleted and made again meanwhile, reading starts over.

    `fetch(first, last)` queries the frames from number `first` up to, not including, `last`. It returns a
    `Stretch` (these frames, the length of the log, and a value that identifies the log), or None if the thread does not
    exist; then the result is empty. Raises `Corrupt` if frames are missing in the store. `thread_id`
    and `where`, the name of the store, are for the error.
    """
    frames: list[bytes] = []
    log: object = None
    page = _FIRST
    while True:
        first = min(start, UNLIMITED) + len(frames)
        last = min(UNLIMITED if stop is None else stop, first + page)
        found = await fetch(first, last)
        if found is None:
            return []
        if log is not None and log != found.log:
            frames.clear()
            log = None
            continue
        log = found.log
        if len(found.frames) != max(0, min(last, found.length) - first):
            raise Corrupt(f"thread {thread_id!r} in {where} lacks frames from {first} to {last}. Restore a copy.")
        frames += found.frames
        if first + page >= min(found.length, UNLIMITED if stop is None else stop):
            return frames
        page = max(16, min(_MOST_ROWS, _BYTES * len(found.frames) // (sum(map(len, found.frames)) + 1)))
