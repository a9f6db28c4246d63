"""Cut files into chunks, and find where the data of a sparse file lies.

The content of a large file decides where it is cut, not fixed offsets. So bytes inserted early in a file change the
chunk they are in, and the chunks after it stay the same. Where the cuts are is not part of any format: a reader joins
whatever chunks there are. But two versions of Clew that cut differently would store the same file twice.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator

from blake3 import blake3

__all__ = ["LARGEST", "ONE_CHUNK", "SMALLEST", "chunks", "data_of", "extents_of"]

ONE_CHUNK = 2**20
"""The size in bytes up to which a file is stored as one chunk. Cutting it would save little and cost another digest."""
SMALLEST = 2**19
LARGEST = 2**21
_MOST_EXTENTS = 65_536

_KINDS = (
    b" etaoinsrhldcu",
    b"mfpgwybvkxjqz\n",
    b"0123456789",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    bytes(set(range(128)) - set(b" \nabcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
    bytes(range(128, 256)),
)


def _class(number: int) -> bytes:
    """Return a regular expression that matches one byte: any of a quarter of all byte values. `number` selects which
    quarter. A file is cut into chunks where several such expressions match in a row.

    The values are drawn by a fixed pseudo-random rule, separately from each kind of byte (letters, digits and so on).
    So the expression matches about a quarter of the bytes in any kind of data.
    """

    def lot(byte: int) -> bytes:
        return blake3(bytes((number, byte))).digest()

    drawn = [sorted(kind, key=lot)[: (len(kind) + number % 4) // 4] for kind in _KINDS]
    return b"[%b]" % b"".join(b"\\x%02x" % byte for kind in drawn for byte in kind)


_CUT = re.compile(b"".join(map(_class, range(7))))
"""Matches the end of a chunk of a file: seven bytes in a row, each of which must be in a set of a quarter of all byte
values (`_class` makes the sets). As measured, there is on average one match in 16 KiB of random bytes, in 9 KiB of
machine code, and in 30 to 150 KiB of prose, source code and numbers."""


def chunks(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Cut the data of a file into chunks and yield them in order. Up to 1 MiB is one chunk; in a larger file the
    content decides where to cut. `size` is the number of bytes of data. `read(count)` returns the next bytes of data:
    exactly `count`, or fewer at the end. At most one chunk and the bytes that may belong to the next one are in
    memory."""
    if size <= ONE_CHUNK:
        if data := read(size):
            yield data
        return
    held = read(LARGEST)
    while held:
        end = _end(held)
        yield held[:end]
        held = held[end:] + read(end)


def _end(data: bytes) -> int:
    if len(data) <= SMALLEST:
        return len(data)
    found = _CUT.search(data, SMALLEST)
    return found.end() if found else len(data)


def data_of(fd: int, extents: tuple[tuple[int, int], ...]) -> Callable[[int], bytes]:
    """Return a function `read(count)` that returns the next bytes of data of a sparse file, without its holes.
    `extents` are the parts of the file that hold data, as offsets and lengths in order."""
    left = [list(extent) for extent in reversed(extents)]

    def read(count: int) -> bytes:
        parts = []
        while count and left:
            offset, length = left[-1]
            part = os.pread(fd, min(count, length), offset)
            if not part:
                left.clear()
                break
            parts.append(part)
            count -= len(part)
            left[-1] = [offset + len(part), length - len(part)]
            if len(part) == length:
                left.pop()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    return read


def extents_of(fd: int, facts: os.stat_result) -> tuple[tuple[int, int], ...] | None:
    """Return which parts of a file hold data, as offsets and lengths in order. Returns None if the file has no holes or
    the system cannot tell. `facts` is the file's stat result."""
    size = facts.st_size
    if getattr(facts, "st_blocks", size) * 512 >= size or not hasattr(os, "SEEK_DATA"):
        return None
    found: list[tuple[int, int]] = []
    end = 0
    try:
        while end < size and len(found) <= _MOST_EXTENTS:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
            if start < end:
                found.append((start, end - start))
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: only a hole follows
            return None
    finally:
        os.lseek(fd, 0, os.SEEK_SET)
    return None if found == [(0, size)] or len(found) > _MOST_EXTENTS else tuple(found)
