"""The format of the records in a thread's file. Each append is one record. Nothing here reads or writes a file: the
functions only convert bytes.

    header   3  magic "CLW"
             1  format version
             8  offset of this record in the file
             8  number of its first frame
            16  sum of the header of the record before it, zeros for the first
             8  length of the record, header and trailer included
             4  number of frames
             4  number of refs: digests of blobs that the frames refer to
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
from itertools import pairwise
from typing import NamedTuple

from blake3 import blake3

__all__ = [
    "HEADER",
    "MAGIC",
    "NO_MARK",
    "SMALLEST",
    "TRAILER",
    "VERSION",
    "BadRecord",
    "Header",
    "NewerRecord",
    "Table",
    "begins",
    "only_frames",
    "pack",
    "trailing",
]

VERSION = 1
NO_MARK = bytes(16)
"""Sixteen zero bytes. The first record of a file has them in the place where others name the checksum of the record
before."""

MAGIC = b"CLW"
"""The bytes that every record begins with."""
_START = struct.Struct("<3sBQQ16s")
_FIELDS = struct.Struct("<3sBQQ16sQIII16s16s")
_WHOLE = struct.Struct(f"{_FIELDS.format}16s")
_TRAILER = struct.Struct("<Q16s")
_SUM = 16

HEADER = _FIELDS.size + _SUM
TRAILER = _TRAILER.size
SMALLEST = HEADER + TRAILER


class BadRecord(Exception):
    """Raised if bytes are not the expected record of a thread's file. A record is one append. The message says what is
    wrong."""


class NewerRecord(Exception):
    """Raised if a record (one append in a thread's file) is sound, but of a later format version than this code can
    read."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"a record of version {version}")


class Table(NamedTuple):
    """The table of a record, which is one append in a thread's file. The table is the part between the record's header
    and its frames: the sizes of the frames, the digests of blobs that they refer to (refs), and the head as msgpack."""

    sizes: tuple[int, ...]
    refs: list[str]
    head: bytes


class Header(NamedTuple):
    """The header of a record, which is one append in a thread's file, after the header's checksum was verified. `at` is
    the number of the first frame. `frames` and `refs` are the numbers of frames and of refs (digests of blobs).
    `length` and `head` are the sizes of the record and of the thread's head in bytes. `mark` is the header's own
    checksum, `before` is the mark of the record before it."""

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
        """The size in bytes of the record's table. A record is one append in a thread's file; its table is the part
        between header and frames."""
        return 4 * self.frames + 32 * self.refs + self.head

    @property
    def trailer(self) -> bytes:
        return _TRAILER.pack(self.length, self.mark)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int) -> Header:
        """Decode and check the header in the first bytes of `data`, which were read from this offset of the file.
        Raises `BadRecord` if these bytes are too few, damaged or something else than a header, and `NewerRecord` if the
        header has a later format version than this code can read."""
        if len(data) < HEADER:
            raise BadRecord("a record's header is cut short")
        magic, version, *stated = _WHOLE.unpack_from(data)
        header = cls._make(stated)
        if magic != MAGIC or _sum(data[: _FIELDS.size]) != header.mark:
            raise BadRecord("a record's header fails its check")
        if header.offset != offset:
            raise BadRecord(f"the record found here belongs at byte {header.offset}")
        if version > VERSION:
            raise NewerRecord(version)
        if header.length < SMALLEST + header.table:
            raise BadRecord("a record is shorter than its own parts")
        return header

    def read_table(self, data: bytes | memoryview) -> Table:
        """Decode and check the table of this record (one append in a thread's file). The table is the part between
        header and frames. `data` are the bytes that follow the header. Raises `BadRecord` if the table is damaged."""
        data = bytes(data[: self.table])
        if len(data) != self.table or _sum(data) != self.table_sum:
            raise BadRecord("a record's table of frames, refs and head fails its check")
        sizes = struct.unpack_from(f"<{self.frames}I", data)
        start = 4 * self.frames
        refs = [data[start + 32 * n : start + 32 * n + 32].hex() for n in range(self.refs)]
        return Table(sizes, refs, data[start + 32 * self.refs :])

    def read(self, data: bytes | memoryview, first: int = 0, last: int | None = None) -> tuple[list[bytes], Table]:
        """Check the complete record in `data`, from header to trailer. A record is one append in a thread's file.
        Returns its frames and its table. The frames are those whose number in the log is at least `first` and less than
        `last`; by default all frames of the record. Raises `BadRecord` if a part of the record is damaged."""
        table = self.read_table(data[HEADER:])
        start, stop = HEADER + self.table, self.length - TRAILER
        frames = data[start:stop]
        if len(frames) != sum(table.sizes) or _sum(frames) != self.frames_sum:
            raise BadRecord("a record's frames fail their check")
        if data[stop : self.length] != self.trailer:
            raise BadRecord("a record's trailer fails its check")
        found = []
        for number, size in enumerate(table.sizes, self.at):
            if first <= number and (last is None or number < last):
                found.append(bytes(data[start : start + size]))
            start += size
        return found, table


def only_frames(data: bytes, bounds: Sequence[int]) -> list[bytes | None]:
    """Check records that follow each other, and return a list with one item for each record: its frame, or None. A
    record is one append in a thread's file.

    A record's item is None if the record fails a check, has refs (digests of blobs), or has not exactly one frame. Use
    `Header.unpack` and `Header.read` for such a record: they read any record, and say what is wrong with a damaged one.
    Most records have one frame and no refs. For these, this function takes less than half of their time (measured).

    `data` holds just these records; it is shorter if the file was cut off meanwhile. `bounds` has the offset in the
    file of each record, and then the end of the last one.
    """
    found: list[bytes | None] = []
    fields_of, trailer_of, begin = _WHOLE.unpack_from, _TRAILER.unpack_from, bounds[0]
    size, last = _FIELDS.size, len(data) - TRAILER
    sums = blake3()  # one object for all sums takes a tenth less time than one for each (measured)
    update, reset = sums.update, sums.reset  # `reset` returns None, `update` the object
    for offset, end in pairwise(bounds):
        start, stop = offset - begin, end - begin - TRAILER
        if not start + HEADER <= stop <= last:
            found.append(None)
            continue
        magic, version, stated, _, _, length, frames, refs, head, table_sum, frames_sum, mark = fields_of(data, start)
        place = start + HEADER + 4 + head
        frame = data[place:stop]
        is_sound = (
            frames == 1
            and not refs
            and magic == MAGIC
            and version == VERSION
            and stated == offset
            and length == end - offset
            and place <= stop
            and (reset() or update(data[start : start + size]).digest(_SUM)) == mark
            and (reset() or update(data[start + HEADER : place]).digest(_SUM)) == table_sum
            and (reset() or update(frame).digest(_SUM)) == frames_sum
            and trailer_of(data, stop) == (length, mark)
        )
        found.append(frame if is_sound else None)
    return found


def pack(
    frames: Sequence[bytes], refs: Collection[str], head: bytes, *, at: int, offset: int, before: bytes
) -> tuple[bytes, Header]:
    """Encode one append as a record of a thread's file. Returns the bytes to write, and the record's header.

    `at` is the number of the first frame in the log, and `offset` the place of the record in the file. `before` is the
    mark (header checksum) of the record before this one. `refs` are digests of blobs, `head` is msgpack.
    """
    table = b"".join([struct.pack(f"<{len(frames)}I", *map(len, frames)), *map(bytes.fromhex, refs), head])
    frames_sum = blake3()
    for frame in frames:
        frames_sum.update(frame)
    length = SMALLEST + len(table) + sum(map(len, frames))
    stated = (offset, at, before, length, len(frames), len(refs), len(head), _sum(table), frames_sum.digest(_SUM))
    fields = _FIELDS.pack(MAGIC, VERSION, *stated)
    header = Header(*stated, _sum(fields))
    return b"".join([fields, header.mark, table, *frames, header.trailer]), header


def trailing(data: bytes) -> tuple[int, bytes]:
    """Decode a record's trailer, which is its last bytes, and return the record's length and mark (header checksum).
    Returns `(0, b"")` if `data` is not as long as a trailer, or if the length is too small for a record. Nothing else
    is checked."""
    length, mark = _TRAILER.unpack(data) if len(data) == TRAILER else (0, b"")
    return (length, mark) if length >= SMALLEST else (0, b"")


def begins(data: bytes, *, at: int, offset: int, before: bytes) -> bool:
    """Return whether `data` is the start of a record's header that was cut short, as a crash leaves it at the end of a
    thread's file. A record is one append. The other arguments are what this header must say: the number of the record's
    first frame (`at`), the record's place in the file (`offset`), and the mark (header checksum) of the record before
    it (`before`)."""
    start = _START.pack(MAGIC, VERSION, offset, at, before)
    return len(data) < HEADER and data[: len(start)] == start[: len(data)]


def _sum(data: bytes | memoryview) -> bytes:
    return blake3(data).digest(_SUM)
