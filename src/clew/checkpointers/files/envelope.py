"""The format of the records in a thread's file. Each append is one record. Pure: bytes in, bytes out.

    header   3  magic "CLW"
             1  format version
             8  offset of this record in the file
             8  number of its first frame
            16  sum of the header of the record before it, zeros for the first
             8  length of the record, header and trailer included
             4  number of frames
             4  number of refs
             4  bytes of the head
            16  sum of the table
            16  sum of the frames
            16  sum of the 88 header bytes so far: the record's mark
    table       the length of each frame (4 bytes), the refs (32 bytes each), the head (msgpack)
    frames      one after the other
    trailer  8  length of the record, once more: the last record can be found from the end of the file
            16  its mark, once more

Integers are unsigned and little-endian; a sum is the first 16 bytes of a blake3. The header has a sum of its own, so
that an incomplete record (the file ends before the length it declares) is never confused with a damaged one. It names
its own offset, so that a copy of a record inside a frame is never taken for a record. It names the mark of the record
before it, so that a mark stands for the whole log up to its record. The header keeps this layout in every later
version, so that a damaged version number is not taken for a newer format.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple

from blake3 import blake3

__all__ = [
    "HEADER",
    "NO_MARK",
    "SMALLEST",
    "TRAILER",
    "VERSION",
    "BadRecord",
    "Header",
    "NewerRecord",
    "Table",
    "begins",
    "pack",
    "trailing",
]

VERSION = 1
NO_MARK = bytes(16)
"""Written in the first record in place of the mark of the record before it."""

_MAGIC = b"CLW"
_START = struct.Struct("<3sBQQ16s")
_FIELDS = struct.Struct("<3sBQQ16sQIII16s16s")
_TRAILER = struct.Struct("<Q16s")
_SUM = 16

HEADER = _FIELDS.size + _SUM
TRAILER = _TRAILER.size
SMALLEST = HEADER + TRAILER


class BadRecord(Exception):
    """These bytes are not the expected record. The message says what is wrong."""


class NewerRecord(Exception):
    """The record is sound, but of a later format version than this code can read."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"a record of version {version}")


class Table(NamedTuple):
    """The table of a record: the sizes of its frames, its refs, and its head as msgpack."""

    sizes: tuple[int, ...]
    refs: list[str]
    head: bytes


class Header(NamedTuple):
    """The fields of a record's header, after its sum was checked. `frames` and `refs` are counts, `head` is a size in
    bytes."""

    offset: int
    at: int
    before: bytes
    length: int
    frames: int
    refs: int
    head: int
    table_sum: bytes
    frames_sum: bytes
    mark: bytes

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def table(self) -> int:
        """The size in bytes of the table, which follows the header."""
        return 4 * self.frames + 32 * self.refs + self.head

    @property
    def trailer(self) -> bytes:
        return _TRAILER.pack(self.length, self.mark)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int) -> Header:
        """Decode and check the header in the first bytes of `data`, read from this offset of the file. Raises `BadRecord` or
        `NewerRecord`."""
        data = bytes(data[:HEADER])
        if len(data) < HEADER:
            raise BadRecord("a record's header is cut short")
        fields, mark = data[: _FIELDS.size], data[_FIELDS.size :]
        if data[:3] != _MAGIC or _sum(fields) != mark:
            raise BadRecord("a record's header fails its check")
        _, version, stated, at, before, length, frames, refs, head, table_sum, frames_sum = _FIELDS.unpack(fields)
        if stated != offset:
            raise BadRecord(f"the record found here belongs at byte {stated}")
        if version > VERSION:
            raise NewerRecord(version)
        header = cls(offset, at, before, length, frames, refs, head, table_sum, frames_sum, mark)
        if length < SMALLEST + header.table:
            raise BadRecord("a record is shorter than its own parts")
        return header

    def read_table(self, data: bytes | memoryview) -> Table:
        """Check and decode the table, given the bytes that follow the header. Raises `BadRecord`."""
        data = bytes(data[: self.table])
        if len(data) != self.table or _sum(data) != self.table_sum:
            raise BadRecord("a record's table of frames, refs and head fails its check")
        sizes = struct.unpack_from(f"<{self.frames}I", data)
        start = 4 * self.frames
        refs = [data[start + 32 * n : start + 32 * n + 32].hex() for n in range(self.refs)]
        return Table(sizes, refs, data[start + 32 * self.refs :])

    def read(self, data: bytes | memoryview) -> tuple[list[bytes], Table]:
        """Check the complete record in `data`, from header to trailer, and return its frames and table. Raises
        `BadRecord`."""
        table = self.read_table(data[HEADER:])
        start, stop = HEADER + self.table, self.length - TRAILER
        frames = data[start:stop]
        if len(frames) != sum(table.sizes) or _sum(frames) != self.frames_sum:
            raise BadRecord("a record's frames fail their check")
        if data[stop : self.length] != self.trailer:
            raise BadRecord("a record's trailer fails its check")
        found = []
        for size in table.sizes:
            found.append(bytes(data[start : start + size]))
            start += size
        return found, table


def pack(
    frames: Sequence[bytes], refs: Collection[str], head: bytes, *, at: int, offset: int, before: bytes
) -> tuple[bytes, Header]:
    """Encode one append as the record to write at this offset, after the record with the mark `before`. Also returns the
    record's header."""
    table = b"".join([struct.pack(f"<{len(frames)}I", *map(len, frames)), *map(bytes.fromhex, refs), head])
    frames_sum = blake3()
    for frame in frames:
        frames_sum.update(frame)
    length = SMALLEST + len(table) + sum(map(len, frames))
    stated = (offset, at, before, length, len(frames), len(refs), len(head), _sum(table), frames_sum.digest(_SUM))
    fields = _FIELDS.pack(_MAGIC, VERSION, *stated)
    header = Header(*stated, _sum(fields))
    return b"".join([fields, header.mark, table, *frames, header.trailer]), header


def trailing(data: bytes) -> tuple[int, bytes]:
    """Decode a trailer: the length and mark of the record that ends with these bytes. Nothing is checked but that the
    length is possible; otherwise returns `(0, b"")`."""
    length, mark = _TRAILER.unpack(data) if len(data) == TRAILER else (0, b"")
    return (length, mark) if length >= SMALLEST else (0, b"")


def begins(data: bytes, *, at: int, offset: int, before: bytes) -> bool:
    """Return whether these bytes are an incomplete header of the record that comes next in a log."""
    start = _START.pack(_MAGIC, VERSION, offset, at, before)
    return len(data) < HEADER and data[: len(start)] == start[: len(data)]


def _sum(data: bytes | memoryview) -> bytes:
    return blake3(data).digest(_SUM)
