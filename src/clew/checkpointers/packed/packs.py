"""The format of packs, and the rule by which small packs are merged. A pack holds older frames of a thread and the refs
(digests of blobs) of these frames. Nothing here reads or writes a store: the functions only convert bytes.

    pack        for each frame its length and its CRC-32 (4 bytes each), the refs (32 bytes each), the frames

Integers are unsigned and little-endian. The thread's record lists its packs. For each it has a checksum of the pack's
bytes before the frames: the first 16 bytes of their blake3 hash.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec
from blake3 import blake3

__all__ = [
    "BadObject",
    "Index",
    "Pack",
    "PackGone",
    "PackTable",
    "checksum",
    "make_pack",
    "merged_with",
    "pack_table",
    "split_frames",
    "split_refs",
    "unique_name",
]

_FRAME = struct.Struct("<II")
GROWTH = 4
"""The number of packs of about equal size that are merged into one. A pack holds older frames of a thread."""
LARGEST = 64 * 2**20
"""The most bytes of a merged pack. Merging more would take an append too long, and too much memory."""


class BadObject(Exception):
    """Raised if bytes that a store holds are not what is expected: a thread, a blob, or a pack (a stored group of older
    frames). The message says what is wrong."""


class PackGone(Exception):
    """Raised if a pack (a stored group of older frames) in a thread's list does not exist. Either the thread changed
    after its list was read, or the pack was deleted by another program."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        super().__init__(pack.name)


class Pack(msgspec.Struct, frozen=True, array_like=True):
    """An entry in a thread's list of packs: a pack's name, its number of frames and of refs (digests of blobs), and its
    size in bytes. A pack holds older frames of the thread."""

    name: str
    frames: int
    refs: int
    size: int
    sum: bytes
    """The first 16 bytes of the blake3 of everything in the pack before its frames."""

    @property
    def table(self) -> int:
        """Number of bytes in the pack, a stored group of older frames, before the first frame."""
        return _FRAME.size * self.frames + 32 * self.refs


class Index(msgspec.Struct, frozen=True, array_like=True):
    """The part of a thread's record that says where its frames and refs (digests of blobs) are: in packs, which are
    stored groups of older frames, or in the tail, which has the newest frames."""

    packs: tuple[Pack, ...]
    sizes: tuple[int, ...]
    """The sizes of the frames in the tail, which are the newest frames: those that are not in a pack yet."""
    refs: bytes
    """The digests of blobs that the tail (the frames that are not in a pack yet) refers to, 32 bytes each."""
    sum: bytes
    """The first 16 bytes of the blake3 of the frames in the tail (those that are not in a pack yet)."""
    rewritten: int
    """Bytes of the tail (the frames that are not in a pack yet) that were written since the last pack was made. Each
    append writes the whole tail."""
    marker: str = ""
    """The name of the marker by which the queue of the workers finds the thread. Empty if the thread is not in the queue,
    or if the store needs no markers."""


class PackTable(NamedTuple):
    """The decoded and checked part of a pack (a stored group of older frames) that precedes its frames: the sizes and
    CRC-32 sums of the frames, and the refs (digests of blobs)."""

    sizes: tuple[int, ...]
    sums: tuple[int, ...]
    refs: list[str]

    def frames(self, data: bytes | memoryview, start: int, stop: int) -> list[bytes]:
        """Split `data` into frames and check each of them. `data` holds the frames of a pack (a stored group of older
        frames) from number `start` up to, not including, `stop`; the first frame of the pack has the number 0. Raises
        `BadObject` if a frame is damaged."""
        found: list[bytes] = []
        at = 0
        for size, expected in zip(self.sizes[start:stop], self.sums[start:stop], strict=True):
            frame = bytes(data[at : at + size])
            if len(frame) != size or crc32(frame) != expected:
                raise BadObject(f"frame {start + len(found)} of it fails its check")
            found.append(frame)
            at += size
        return found


def make_pack(frames: Sequence[bytes], refs: Sequence[str]) -> tuple[Pack, bytes]:
    """Encode frames and refs (digests of blobs) as a pack, a stored group of older frames, with a new unique name.
    Returns the pack's entry for the thread's list of packs, and its bytes."""
    table = b"".join(
        [*(_FRAME.pack(len(frame), crc32(frame)) for frame in frames), *(bytes.fromhex(digest) for digest in refs)]
    )
    data = b"".join([table, *frames])
    return Pack(unique_name(), len(frames), len(refs), len(data), checksum(table)), data


def pack_table(pack: Pack, data: bytes) -> PackTable:
    """Decode the part of a pack (a stored group of older frames) that comes before the frames, and check it against the
    checksum in `pack`, the entry in the thread's list of packs. `data` is the whole pack or at least that part. Raises
    `BadObject` if the part is damaged."""
    table = data[: pack.table]
    if checksum(table) != pack.sum:
        raise BadObject("its table fails its check")
    start = _FRAME.size * pack.frames
    numbers = struct.unpack_from(f"<{2 * pack.frames}I", table)
    return PackTable(numbers[::2], numbers[1::2], split_refs(table[start:]))


def merged_with(sizes: Sequence[int], new: int) -> int:
    """Return how many of the newest packs should be merged with `new` bytes of new frames into one pack. A pack is a
    stored group of older frames. `sizes` are the sizes of the existing packs in bytes, from old to new.

    The level of a pack is log₄ of its size in bytes, rounded down. The new pack takes in the newest packs that are of a
    lower level than itself. If there are none, it takes in the three newest if all of them are of its own level. Both
    steps are repeated with the packs that are left, and with the level that the new pack then has, until none is taken
    in. Packs are not merged if the result would have more than `LARGEST` bytes.

    So a log of n bytes has at most 3·log₄(n) packs, and each of its bytes is written at most log₄(n) times. A log that
    is much longer than `LARGEST` has more packs.
    """
    total, first = new, len(sizes)
    while True:
        level, more = _level(total), first
        while more and _level(sizes[more - 1]) < level:
            more -= 1
        if more == first >= GROWTH - 1 and {_level(size) for size in sizes[first - GROWTH + 1 : first]} == {level}:
            more = first - GROWTH + 1
        added = sum(sizes[more:first])
        if more == first or total + added > LARGEST:
            return len(sizes) - first
        total, first = total + added, more


def _level(size: int) -> int:
    """Return log₄ of this size in bytes, rounded down. Packs of the same level are of about the same size."""
    return (size.bit_length() - 1) // 2


def unique_name() -> str:
    """Return a random name of 32 hex digits. It is so long that no two objects ever get the same name."""
    return os.urandom(16).hex()


def checksum(data: bytes) -> bytes:
    """Return a checksum of these bytes: the first 16 bytes of their blake3."""
    return blake3(data).digest(16)


def split_frames(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Split `data` into frames. `sizes` are the numbers of bytes of the frames, in order."""
    frames, at = [], 0
    for size in sizes:
        frames.append(data[at : at + size])
        at += size
    return frames


def split_refs(data: bytes) -> list[str]:
    """Split `data` into refs (digests of blobs) of 32 bytes each. Returns each digest in hex."""
    return [data[at : at + 32].hex() for at in range(0, len(data), 32)]
