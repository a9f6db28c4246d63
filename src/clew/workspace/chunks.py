"""Where files are cut into chunks, and where the data of a sparse file lies.

A large file is cut where its content says, and not at fixed places: so bytes inserted early in a file change the chunk
they are in, and the chunks behind it stay what they were. The cuts are part of no format: a reader puts together whatever
chunks there are. But two versions of Clew that cut differently would store the same file twice.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator

from blake3 import blake3

__all__ = ["LARGEST", "ONE_CHUNK", "SMALLEST", "chunks", "data_of", "extents_of"]

ONE_CHUNK = 2**20
"""A file up to this size is one chunk: a cut would save little, and cost a digest."""
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
    """A quarter of all bytes, as a part of a pattern. Which ones was drawn by lot, once and for all, and of each kind
    apart: so it is about a quarter of any kind of data."""

    def lot(byte: int) -> bytes:
        return blake3(bytes((number, byte))).digest()

    drawn = [sorted(kind, key=lot)[: (len(kind) + number % 4) // 4] for kind in _KINDS]
    return b"[%b]" % b"".join(b"\\x%02x" % byte for kind in drawn for byte in kind)


_CUT = re.compile(b"".join(map(_class, range(7))))
"""What a chunk ends with: seven bytes in a row, each from a quarter of all. Measured: one place in 16 Ki of random bytes,
in 9 Ki of machine code, in 30 to 150 Ki of prose, code and numbers."""


def chunks(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Cut a file of this size, as `read(count)` gives it: less only at its end. No more than one chunk and what may follow
    it is in memory."""
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
    """Reads the data of these parts of a file, one after the other, as if there were nothing between them."""
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
    """Where a file has data: offset and length, in order. None if it has no holes, or if nobody can say."""
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
        if error.errno != errno.ENXIO:  # which says that only a hole follows
            return None
    finally:
        os.lseek(fd, 0, os.SEEK_SET)
    return None if found == [(0, size)] or len(found) > _MOST_EXTENTS else tuple(found)
