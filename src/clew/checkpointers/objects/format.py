"""The format of the objects in a bucket. Nothing here makes requests: the functions only convert bytes. The format of
packs is in `packed.packs`.

    <prefix>/<blake3 of the namespace>/
        threads/<blake3 of the id>            one object a thread, whose conditional put is the commit
        packs/<blake3 of the id>/<name>       older frames and refs of that thread; the thread's object lists its packs
        blobs/<digest>                        one object a blob: when it was touched, and the blob itself if it is small
        data/<digest>/<name>                  the bytes of a large blob; the blob's object holds this name
        heads                                 a cache for listings, checked against every thread's object
        due/<blake3 of the id>/<name>         empty: a marker, by which the queue of the workers finds that thread; the
                                              thread's object holds this name

    thread   3  magic "CLT"
             1  format version
             4  bytes of the head
             4  CRC-32 of the head
             4  bytes of the index
             4  CRC-32 of the index
             4  CRC-32 of these 20 bytes
             -  the head (msgpack), then the index (msgpack: packs, lengths of the tail's frames, the tail's refs, the
                tail's sum, bytes rewritten since the last pack, name of the thread's marker in due/ or an empty text),
                then the tail: the newest frames, one after the other

    blob     3  magic "CLB"
             1  format version
             8  when it was touched: microseconds since 1970
             8  random, so that no two states of the object are equal
            16  name of the object in data/ that holds the bytes; zeros if they follow here
             4  CRC-32 of these 36 bytes
             -  the blob, if it is small

    dead     3  magic "CLD"
             1  format version
             8  since when a process has been deleting this object: microseconds since 1970; 0 if none does
             8  random, so that no two states of the object are equal
             4  CRC-32 of these 20 bytes

A dead record stands in the place of a blob that is being deleted, and in the place of a thread that was deleted. The
object of a thread in the queue of the workers, which has a marker, is of version 2, because an older Clew would write it
again without its place in the queue. All other objects are of version 1.

Integers are unsigned and little-endian; a sum is the first 16 bytes of a blake3. A ref is the digest of a blob that the
thread refers to. A blob is touched when its time of last use is set to now.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

from clew.checkpointers.heads import Head
from clew.checkpointers.packed.packs import BadObject, Index, Pack, checksum, split_frames, split_refs

__all__ = [
    "BLOB_HEADER",
    "DEAD_SIZE",
    "VERSION",
    "Dead",
    "NewerObject",
    "Record",
    "ThreadParts",
    "dead_record",
    "is_dead",
    "read_record",
    "record",
    "thread_object",
    "thread_parts",
    "thread_tail",
]

VERSION = 2
"""The newest format that this version of Clew can read."""
_FIRST, _QUEUED = 1, 2
"""The format of most objects, and that of the object of a thread in the queue of the workers."""
_THREAD = struct.Struct("<3sBIIII")
_CRC = struct.Struct("<I")
_BLOB = struct.Struct("<3sBQ8s16s")
_DEAD = struct.Struct("<3sBQ8s")
_HERE = bytes(16)

THREAD_HEADER = _THREAD.size + _CRC.size
BLOB_HEADER = _BLOB.size + _CRC.size
DEAD_SIZE = _DEAD.size + _CRC.size


class NewerObject(Exception):
    """Raised if an object in a bucket is sound, but of a later format version than this code can read."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"an object of version {version}")


class ThreadParts(NamedTuple):
    """The first parts of the object in a bucket that holds a thread, after their checksums were verified: the thread's
    head, and the index, which lists the packs (stored groups of older frames) and the sizes of the newest frames."""

    head: Head
    contents: Index | None
    """The index; None if only the start of the object was read and the index is not in it."""
    tail: int
    """Offset in the object at which the frames that are not in a pack start."""


class Record(NamedTuple):
    """The content of the object in a bucket that stands for a blob, after the checksum of its first fields was
    verified. The blob's own bytes are not checked yet."""

    touched: int
    """The blob's time of last use, in microseconds since 1970."""
    name: str
    """Name of the object that holds the blob's bytes; empty if they are in `data`."""
    data: bytes


class Dead(NamedTuple):
    """The content of the object that a bucket holds in place of a blob that is being deleted, or of a thread that was
    deleted. For readers the blob or thread does not exist."""

    since: int
    """Since when a process has been deleting the object: microseconds since 1970. 0 if no process does."""


def thread_object(
    head: bytes, packs: tuple[Pack, ...], tail: Sequence[bytes], refs: Iterable[str], rewritten: int, marker: str = ""
) -> bytes:
    """Return the bytes of the object in a bucket that holds a thread. `head` is the thread's head as msgpack. `packs`
    lists the thread's packs, which are stored groups of older frames. `tail` and `refs` are the frames and the digests
    of blobs that are not in a pack yet. Every append writes these again; `rewritten` is the number of bytes that all
    appends since the last pack was made have written for them. `marker` is the name of the marker by which the queue of
    the workers finds the thread; empty if it is not in the queue."""
    joined = b"".join(tail)
    index = _encode(
        Index(packs, tuple(map(len, tail)), b"".join(map(bytes.fromhex, refs)), checksum(joined), rewritten, marker)
    )
    fields = _THREAD.pack(b"CLT", _QUEUED if marker else _FIRST, len(head), crc32(head), len(index), crc32(index))
    return b"".join((fields, _CRC.pack(crc32(fields)), head, index, joined))


def thread_parts(data: bytes) -> tuple[ThreadParts | None, int]:
    """Decode and check the first parts of the object in a bucket that holds a thread: the head and the index, which
    lists the thread's packs (stored groups of older frames) and the sizes of its newest frames. `data` is the object or
    only the start of it.

    Returns these parts, and the number of bytes that they take at the start of the object. The index is None if `data`
    ends before the end of the index. Instead of the parts, None is returned if `data` ends within the head. Raises
    `BadObject` if the object is damaged, and `NewerObject` if it has a later format version.
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
    """Return the newest frames of a thread, which are in the thread's own object and not in a pack (a stored group of
    older frames), and the digests of blobs that they refer to. `data` is the whole object, and `parts` are its decoded
    first parts. Raises `BadObject` if the object is damaged or cut short."""
    if parts.contents is None:
        raise BadObject("it is cut short")
    tail = data[parts.tail :]
    if checksum(tail) != parts.contents.sum or len(tail) != sum(parts.contents.sizes):
        raise BadObject("its newest frames fail their check")
    return split_frames(tail, parts.contents.sizes), split_refs(parts.contents.refs)


def record(touched: int, data: bytes, name: str = "") -> bytes:
    """Return the bytes of the object in a bucket that stands for a blob. It holds `touched`, the blob's time of last
    use in microseconds since 1970, and either the blob's bytes (`data`) or the name of another object that holds
    them."""
    fields = _BLOB.pack(b"CLB", _FIRST, touched, os.urandom(8), bytes.fromhex(name) if name else _HERE)
    return b"".join((fields, _CRC.pack(crc32(fields)), data))


def dead_record(since: int) -> bytes:
    """Return the bytes of a dead record, the object that a bucket holds in place of a deleted blob or thread. `since`
    is when a process began to delete the dead record itself, in microseconds since 1970; 0 if no process does."""
    fields = _DEAD.pack(b"CLD", _FIRST, since, os.urandom(8))
    return fields + _CRC.pack(crc32(fields))


def is_dead(data: bytes) -> bool:
    """Return whether `data` is a dead record, the object that a bucket holds in place of a deleted blob or thread.
    Raises `BadObject` if it is damaged, and `NewerObject` if it has a later format version. `data` is an object or at
    least its first 24 bytes (`DEAD_SIZE`)."""
    return data[:3] == b"CLD" and isinstance(read_record(data), Dead)


def read_record(data: bytes) -> Record | Dead:
    """Decode and check the object in a bucket that stands for a blob. Returns a `Record` if the blob exists, and a
    `Dead` if it is being deleted. Raises `BadObject` if the object is damaged, and `NewerObject` if it has a later
    format version."""
    if data[:3] == b"CLD":
        _, version, since, _ = _DEAD.unpack(_checked(data, _DEAD.size, b"CLD"))
        if version > VERSION:
            raise NewerObject(version)
        return Dead(since)
    _, version, touched, _, name = _BLOB.unpack(_checked(data, _BLOB.size, b"CLB"))
    if version > VERSION:
        raise NewerObject(version)
    return Record(touched, "" if name == _HERE else name.hex(), data[BLOB_HEADER:])


def _checked(data: bytes, size: int, magic: bytes) -> bytes:
    """Return the first `size` bytes of `data`, an object that was read from a bucket. Raises `BadObject` unless these
    bytes start with `magic` and match the CRC-32 that follows them."""
    fields = data[:size]
    if len(data) < size + _CRC.size or fields[:3] != magic or _CRC.pack(crc32(fields)) != data[size : size + _CRC.size]:
        raise BadObject("its first bytes fail their check")
    return fields


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_index = msgspec.msgpack.Decoder(Index).decode
