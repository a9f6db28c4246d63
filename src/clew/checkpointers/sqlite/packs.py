"""Packs: many frames of one log in one row, for frames that have been in the store for a while.

An append writes each frame as a row of the table `frames`, where the frames of many threads share a page of the
database. Such a page wastes half a frame on average, and each frame has to be looked up by itself. So when a log has
many such rows, the writer joins them: in one transaction it replaces a run of them with one row of the table `packs`. A
row that is larger than a page fills all its pages but the last. Measured on turns of 3 KB, this saves a tenth of the
file.

A pack has 4 bytes for the length of each of its frames (unsigned, little-endian), then the frames one after the other.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import Any

import apsw

from clew.checkpointers.sqlite.connection import FAULTS
from clew.checkpointers.sqlite.schema import PAGE_SIZE

__all__ = ["FULL", "LEAST", "PACK_AFTER", "frames_of", "pack_frames", "pack_logs", "trim"]

log = logging.getLogger("clew.checkpointers.sqlite")

PACK_AFTER = 128 * 1024
"""While the store is in use, the writer packs the frames of a log once this many bytes were appended to it. The writer
does so just before it moves the WAL (SQLite's write-ahead log) into the database."""
LEAST = 32 * 1024
"""The fewest bytes of frames that become a pack when the store is closed."""
FULL = 112 * 1024
"""The bytes of frames after which a pack ends. Larger packs save no more bytes, and are read more slowly (measured): a
piece of memory of more than 128 KiB is returned to the system when it is freed, and requested again for the next
pack."""
_LARGE = 16 * 1024
"""Frames of this many bytes or more are not packed: a row of its own wastes little space for such a frame."""
_FEW_PAGES = 256
_ROWS_AT_ONCE = 2048
"""The most rows that are packed in one transaction. So a long log that an older version of Clew wrote, without packs,
is packed part by part."""


def frames_of(db: apsw.Cursor, log: int, start: int, stop: int) -> list[Any]:
    """Return the frames of a log from number `start` up to, not including, `stop`. `log` is the id of the thread's row
    in the table `heads`. If the database is damaged, there may be fewer, or some that are not bytes."""
    found: list[tuple[Any, list[Any]]] = []
    for number, count, data in db.execute(_PACKS, (log, start, stop)):  # one at a time, so that memory is reused
        found.append((number, _unpack(count, data)))
        del data
    if not found:
        return [data for (data,) in db.execute(_ROWS, (log, start, stop))]
    found += [(number, [data]) for number, data in db.execute(_NUMBERED_ROWS, (log, start, stop))]
    if not {int}.issuperset(type(number) for number, _ in found):
        return []
    found.sort(key=itemgetter(0))
    first: int = found[0][0]
    frames: list[Any] = []
    for number, some in found:
        if number != first + len(frames):  # a row is missing, or is there twice
            return []
        frames += some
    return frames[start - first : stop - first] if first <= start else []


_PACKS = """
SELECT number, count, data FROM packs
WHERE thread = ?1 AND number < ?3
    AND number >= coalesce((SELECT max(number) FROM packs WHERE thread = ?1 AND number <= ?2 AND number + count > ?2), ?2)
ORDER BY number
"""
_ROWS = "SELECT data FROM frames WHERE thread = ? AND number >= ? AND number < ? ORDER BY number"
_NUMBERED_ROWS = "SELECT number, data FROM frames WHERE thread = ? AND number >= ? AND number < ?"


def _unpack(count: object, data: object) -> list[bytes]:
    """Return the frames of a pack, which is a row that holds many frames. `count` is the number of its frames, and
    `data` are its bytes. Returns an empty list if the pack is damaged."""
    if not isinstance(count, int) or not isinstance(data, bytes) or not 0 < count <= len(data) // 4:
        return []
    bounds = [*accumulate(struct.unpack_from(f"<{count}I", data), initial=4 * count)]
    return [data[start:stop] for start, stop in pairwise(bounds)] if bounds[-1] == len(data) else []


def pack_logs(connection: apsw.Connection, appended: dict[int, int], after: int, least: int) -> None:
    """Join frames of logs into packs (rows that hold many frames), so that they take fewer pages. Does so for each log
    to which at least `after` bytes were appended. Frames that have fewer than `least` bytes together stay as they are.

    `appended` has the number of bytes that were appended to each log and are not in a pack, by the id of the thread's
    row in the table `heads`; this function brings it up to date. Call it when nobody waits for it. A failure is only
    logged: then the frames stay as they are.
    """
    for log_id in [log_id for log_id, size in appended.items() if size >= after]:
        try:
            with connection:
                appended[log_id] = pack_frames(connection.cursor(), log_id, least)
        except FAULTS as error:
            log.debug("frames are not packed for now: %s", error)
            return


def pack_frames(db: apsw.Cursor, log: int, least: int) -> int:
    """Join the frames of a log that are still in rows of their own into packs (rows that hold many frames). Called
    inside a transaction. The newest frames stay as they are if they have fewer than `least` bytes together. Returns the
    number of bytes that are not in a pack. `log` is the id of the thread's row in the table `heads`."""
    sizes: list[Any] = db.execute(_SIZES, (log, _ROWS_AT_ONCE)).fetchall()
    if not {int}.issuperset(map(type, chain.from_iterable(sizes))):
        return 0  # damaged: left for a read to report
    left: int = sum([size for _, size in sizes])
    for start, stop, size in _runs(sizes, least):
        frames = [data for (data,) in db.execute(_ROWS, (log, start, stop))]
        if len(frames) != stop - start or not {bytes}.issuperset(map(type, frames)):
            break  # damaged: left for a read to report
        data = b"".join([struct.pack(f"<{len(frames)}I", *map(len, frames)), *frames])
        db.execute("DELETE FROM frames WHERE thread = ? AND number >= ? AND number < ?", (log, start, stop))
        db.execute("INSERT INTO packs VALUES (?, ?, ?, ?)", (log, start, len(frames), data))
        left -= size
    return left


def trim(connection: apsw.Connection) -> None:
    """Remove the free pages that packing has left in the database file, unless there are more than 256 (`_FEW_PAGES`).
    That many stay: removing them would take long, and appends will use them. Errors of SQLite are ignored."""
    with suppress(apsw.Error):
        if 0 < connection.execute("PRAGMA freelist_count").get <= _FEW_PAGES:
            connection.execute(f"PRAGMA incremental_vacuum({_FEW_PAGES})").fetchall()


_SIZES = "SELECT number, length(data) FROM frames WHERE thread = ? ORDER BY number LIMIT ?"


def _runs(sizes: Sequence[tuple[int, int]], least: int) -> Iterator[tuple[int, int, int]]:
    """Decide which frames of a log to join into packs (rows that hold many frames). Yields three numbers for each pack:
    the number of its first frame, the number after its last frame, and the size of its frames in bytes. `sizes` has the
    number and the size of each frame. Consecutive frames that have fewer than `least` bytes together are left out, and
    so are frames of `_LARGE` bytes or more. Frames that reach `FULL` bytes together are cut near there, after the frame
    that leaves the fewest bytes of the pack's last page empty."""
    here = 0
    while here < len(sizes):
        first, total, end = sizes[here][0], 0, here
        ends: list[tuple[int, int, int]] = []
        while end < len(sizes) and total < FULL and sizes[end][0] == first + end - here and sizes[end][1] < _LARGE:
            total += sizes[end][1]
            end += 1
            ends.append((_wasted(total + 4 * (end - here)), end, total))
        is_pack = total >= least and end - here > 1
        if total >= FULL:
            _, end, total = min(waste for waste in ends if waste[2] > FULL * 3 // 4)
        if is_pack:
            yield first, first + end - here, total
        here = max(end, here + 1)


def _wasted(size: int) -> int:
    """Return how many bytes of its last page a pack of this size leaves empty. A pack is a row that holds many frames.
    SQLite keeps a part of a large row, from `_BESIDE[0]` to `_BESIDE[1]` bytes, in the page with the row's key. The
    rest is in pages that no other row uses."""
    rest = (size + _ROW - _BESIDE[0]) % (PAGE_SIZE - 4)
    return 0 if rest <= _BESIDE[1] - _BESIDE[0] else PAGE_SIZE - 4 - rest


_BESIDE = (PAGE_SIZE - 12) * 32 // 255 - 23, (PAGE_SIZE - 12) * 64 // 255 - 23
_ROW = 16
"""The most bytes that a row of the table `packs` has besides its data."""
