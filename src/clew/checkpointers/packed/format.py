"""The bytes of the objects in a bucket. Pure: bytes in, bytes out.

    <prefix>/<blake3 of the namespace>/
        threads/<blake3 of the id>            one object a thread, whose conditional put is the commit
        packs/<blake3 of the id>/<name>       older frames and refs of that thread, named by the thread's object
        blobs/<digest>                        one object a blob: when it was touched, and the blob itself if it is small
        data/<digest>/<name>                  a large blob, named by the blob's object
        heads                                 a cache for listings, checked against every thread's object

    thread   3  magic "CLT"
             1  format version
             4  bytes of the head
             4  CRC-32 of the head
             4  bytes of the index
             4  CRC-32 of the index
             4  CRC-32 of these 20 bytes
             -  the head (msgpack), then the index (msgpack: packs, lengths of the tail's frames, the tail's refs, the
                tail's sum, bytes rewritten since the last pack), then the tail: the newest frames, one after the other

    pack        for each frame its length and its CRC-32 (4 bytes each), the refs (32 bytes each), the frames. What comes
                before the frames has its sum in the index that names the pack.

    blob     3  magic "CLB"
             1  format version
             8  when it was touched: microseconds since 1970
             8  random, so that no two states of the object are equal
            16  name of the object in data/ that holds the bytes; zeros if they follow here
             4  CRC-32 of these 36 bytes
             -  the blob, if it is small

    A blob that is being removed: the same without the name, and nothing follows (magic "CLD", 24 bytes in all).

Integers are unsigned and little-endian; a sum is the first 16 bytes of a blake3.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec
from blake3 import blake3

from clew.checkpointers.heads import Head

__all__ = [
    "BLOB_HEADER",
    "DEAD_SIZE",
    "VERSION",
    "BadObject",
    "Dead",
    "Index",
    "NewerObject",
    "Pack",
    "PackTable",
    "Record",
    "ThreadParts",
    "dead_record",
    "make_pack",
    "pack_table",
    "read_record",
    "record",
    "thread_object",
    "thread_parts",
    "thread_tail",
    "unique_name",
]

VERSION = 1
_SUM = 16
_THREAD = struct.Struct("<3sBIIII")
_CRC = struct.Struct("<I")
_FRAME = struct.Struct("<II")
_BLOB = struct.Struct("<3sBQ8s16s")
_DEAD = struct.Struct("<3sBQ8s")
_HERE = bytes(16)

THREAD_HEADER = _THREAD.size + _CRC.size
BLOB_HEADER = _BLOB.size + _CRC.size
DEAD_SIZE = _DEAD.size + _CRC.size


class BadObject(Exception):
    """These bytes are not the object they should be; the message says in what way."""


class NewerObject(Exception):
    """A sound object of a later version than this code reads."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"an object of version {version}")


class Pack(msgspec.Struct, frozen=True, array_like=True):
    """A pack as the thread's object names it."""

    name: str
    frames: int
    refs: int
    size: int
    sum: bytes
    """Of all that comes before the frames."""

    @property
    def table(self) -> int:
        """Bytes before the frames."""
        return _FRAME.size * self.frames + 32 * self.refs


class Index(msgspec.Struct, frozen=True, array_like=True):
    """What a thread's object says of its frames and refs."""

    packs: tuple[Pack, ...]
    sizes: tuple[int, ...]
    """Of the frames in the tail."""
    refs: bytes
    """Those in the tail, 32 bytes each."""
    sum: bytes
    """Of the tail."""
    rewritten: int
    """Bytes of tail written since the last pack was made."""


class ThreadParts(NamedTuple):
    """The first part of a thread's object, checked."""

    head: Head
    contents: Index | None
    """None if the bytes given end before it."""
    tail: int
    """Where the tail starts."""


class PackTable(NamedTuple):
    """The first part of a pack, checked."""

    sizes: tuple[int, ...]
    sums: tuple[int, ...]
    refs: list[str]

    def frames(self, data: bytes | memoryview, start: int, stop: int) -> list[bytes]:
        """Check and take apart the bytes of the frames from `start` up to `stop`."""
        found: list[bytes] = []
        at = 0
        for size, expected in zip(self.sizes[start:stop], self.sums[start:stop], strict=True):
            frame = bytes(data[at : at + size])
            if len(frame) != size or crc32(frame) != expected:
                raise BadObject(f"frame {start + len(found)} of it fails its check")
            found.append(frame)
            at += size
        return found


class Record(NamedTuple):
    """A blob's object, checked; the bytes of the blob are not."""

    touched: int
    name: str
    """Of the object that holds the bytes; empty if they are here."""
    data: bytes


class Dead(NamedTuple):
    """The object of a blob that somebody has begun to remove."""

    since: int


def thread_object(
    head: bytes, packs: tuple[Pack, ...], tail: Sequence[bytes], refs: Iterable[str], rewritten: int
) -> bytes:
    joined = b"".join(tail)
    index = _encode(Index(packs, tuple(map(len, tail)), b"".join(map(bytes.fromhex, refs)), _sum(joined), rewritten))
    fields = _THREAD.pack(b"CLT", VERSION, len(head), crc32(head), len(index), crc32(index))
    return b"".join((fields, _CRC.pack(crc32(fields)), head, index, joined))


def thread_parts(data: bytes) -> tuple[ThreadParts | None, int]:
    """The head, and the index if these bytes reach that far; and how many bytes it takes for both.

    No parts at all if the bytes end within the head.
    """
    fields = _checked(data, _THREAD.size, b"CLT")
    _, version, head_size, head_sum, index_size, index_sum = _THREAD.unpack(fields)
    if version > VERSION:
        raise NewerObject(version)
    start = THREAD_HEADER + head_size
    end = start + index_size
    if len(data) < start:
        return None, end
    head = data[THREAD_HEADER:start]
    if crc32(head) != head_sum:
        raise BadObject("its head fails its check")
    index = data[start:end]
    if len(data) >= end and crc32(index) != index_sum:
        raise BadObject("its index fails its check")
    try:
        return ThreadParts(_decode_head(head), _decode_index(index) if len(data) >= end else None, end), end
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadObject(f"it does not decode: {error}") from error


def thread_tail(data: bytes, parts: ThreadParts) -> tuple[list[bytes], list[str]]:
    """The frames and refs of the tail, given the whole object."""
    if parts.contents is None:
        raise BadObject("it is cut short")
    tail = data[parts.tail :]
    if _sum(tail) != parts.contents.sum or len(tail) != sum(parts.contents.sizes):
        raise BadObject("its newest frames fail their check")
    frames, at = [], 0
    for size in parts.contents.sizes:
        frames.append(tail[at : at + size])
        at += size
    return frames, _refs(parts.contents.refs)


def make_pack(frames: Sequence[bytes], refs: Sequence[str]) -> tuple[Pack, bytes]:
    """A pack of these frames and refs under a name that no other has."""
    table = b"".join(
        [*(_FRAME.pack(len(frame), crc32(frame)) for frame in frames), *(bytes.fromhex(digest) for digest in refs)]
    )
    data = b"".join([table, *frames])
    return Pack(unique_name(), len(frames), len(refs), len(data), _sum(table)), data


def pack_table(pack: Pack, data: bytes) -> PackTable:
    """What comes before the frames, given the bytes it is in."""
    table = data[: pack.table]
    if _sum(table) != pack.sum:
        raise BadObject("its table fails its check")
    start = _FRAME.size * pack.frames
    numbers = struct.unpack_from(f"<{2 * pack.frames}I", table)
    return PackTable(numbers[::2], numbers[1::2], _refs(table[start:]))


def record(touched: int, data: bytes, name: str = "") -> bytes:
    """A blob's object: with the blob's bytes, or with the name of the object that holds them."""
    fields = _BLOB.pack(b"CLB", VERSION, touched, os.urandom(8), bytes.fromhex(name) if name else _HERE)
    return b"".join((fields, _CRC.pack(crc32(fields)), data))


def dead_record(since: int) -> bytes:
    fields = _DEAD.pack(b"CLD", VERSION, since, os.urandom(8))
    return fields + _CRC.pack(crc32(fields))


def read_record(data: bytes) -> Record | Dead:
    if data[:3] == b"CLD":
        _, version, since, _ = _DEAD.unpack(_checked(data, _DEAD.size, b"CLD"))
        if version > VERSION:
            raise NewerObject(version)
        return Dead(since)
    _, version, touched, _, name = _BLOB.unpack(_checked(data, _BLOB.size, b"CLB"))
    if version > VERSION:
        raise NewerObject(version)
    return Record(touched, "" if name == _HERE else name.hex(), data[BLOB_HEADER:])


def unique_name() -> str:
    return os.urandom(16).hex()


def _checked(data: bytes, size: int, magic: bytes) -> bytes:
    """The fixed fields at the start of an object."""
    fields = data[:size]
    if len(data) < size + _CRC.size or fields[:3] != magic or _CRC.pack(crc32(fields)) != data[size : size + _CRC.size]:
        raise BadObject("its first bytes fail their check")
    return fields


def _refs(data: bytes) -> list[str]:
    return [data[at : at + 32].hex() for at in range(0, len(data), 32)]


def _sum(data: bytes) -> bytes:
    return blake3(data).digest(_SUM)


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_index = msgspec.msgpack.Decoder(Index).decode
