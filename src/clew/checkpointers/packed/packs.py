"""Packs hold the older frames and refs of a thread. Small packs are merged into larger ones, so that there are few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clew._runtime.aio import together
from clew.checkpointers.packed.format import BadObject, Pack, PackTable, make_pack, pack_table
from clew.errors import Corrupt

if TYPE_CHECKING:
    from clew.checkpointers.objects.bucket import PatientBucket

__all__ = ["PackGone", "Packs", "merged_with"]

GROWTH = 4
"""So many packs of about equal size are merged into one."""
LARGEST = 64 * 2**20
"""The most bytes of a merged pack. Merging more would take an append too long, and too much memory."""
WHOLE = 2**20
"""Packs up to this many bytes are always read whole, even if only some frames are wanted."""


class PackGone(Exception):
    """A pack in a thread's list does not exist. Either the thread changed after its list was read, or the pack was
    deleted by another program."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        super().__init__(pack.name)


def merged_with(sizes: Sequence[int], new: int) -> int:
    """Return how many of the newest packs should be merged into a new pack of `new` bytes. `sizes` are from old to new.

    The level of a pack is log₄ of its size. A new pack takes in the packs before it that are of a lower level; together with
    three packs of its own level it becomes one of the next level. So there are at most three packs of each level, levels
    fall from old to new, and a byte rises one level each time it is written again. A log of n bytes therefore has at most
    3·log₄(n) packs, and each of its bytes is written at most log₄(n) times.
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
    """Return log₄ of this size, rounded down."""
    return (size.bit_length() - 1) // 2


class Packs:
    """Reads and writes the packs of one namespace of a bucket. `thread` is always the key of the thread that a pack belongs
    to."""

    def __init__(self, bucket: PatientBucket, folder: str, where: str) -> None:
        self._bucket = bucket
        self.folder = folder
        self._where = where

    def key(self, thread: str, pack: Pack) -> str:
        return f"{self.folder}/{thread}/{pack.name}"

    async def write(self, thread: str, taken_in: Sequence[Pack], frames: Sequence[bytes], refs: Sequence[str]) -> Pack:
        """Write a new pack with the content of the packs `taken_in`, followed by these frames and refs."""
        older = await together([self._whole(thread, pack) for pack in taken_in])
        all_frames = [frame for found, _ in older for frame in found] + list(frames)
        all_refs = dict.fromkeys([ref for _, found in older for ref in found] + list(refs))
        pack, data = make_pack(all_frames, list(all_refs))
        await self._bucket.put(self.key(thread, pack), data)
        return pack

    async def frames(self, thread: str, pack: Pack, start: int, stop: int) -> list[bytes]:
        """Read frames of a pack, from number `start` up to `stop`. Numbers count from the start of the pack."""
        if pack.size <= WHOLE or 2 * (stop - start) >= pack.frames:
            frames, _ = await self._whole(thread, pack)
            return frames[start:stop]
        table = await self._table(thread, pack)
        before, size = sum(table.sizes[:start]), sum(table.sizes[start:stop])
        data = await self._get(thread, pack, pack.table + before, size) if size else b""
        try:
            return table.frames(data, start, stop)
        except BadObject as error:
            raise self._corrupt(thread, pack, error) from error

    async def refs(self, thread: str, pack: Pack) -> list[str]:
        return (await self._table(thread, pack)).refs if pack.refs else []

    async def delete(self, thread: str, packs: Sequence[Pack]) -> None:
        await self._bucket.delete([self.key(thread, pack) for pack in packs])

    async def _whole(self, thread: str, pack: Pack) -> tuple[list[bytes], list[str]]:
        data = await self._get(thread, pack)
        try:
            table = pack_table(pack, data)
            return table.frames(memoryview(data)[pack.table :], 0, pack.frames), table.refs
        except BadObject as error:
            raise self._corrupt(thread, pack, error) from error

    async def _table(self, thread: str, pack: Pack) -> PackTable:
        data = await self._get(thread, pack, 0, pack.table)
        try:
            return pack_table(pack, data)
        except BadObject as error:
            raise self._corrupt(thread, pack, error) from error

    async def _get(self, thread: str, pack: Pack, start: int = 0, size: int | None = None) -> bytes:
        found = await self._bucket.get(self.key(thread, pack), start, size)
        if found is None:
            raise PackGone(pack)
        return found.data

    def _corrupt(self, thread: str, pack: Pack, error: BadObject) -> Corrupt:
        return Corrupt(f"{self.key(thread, pack)} in {self._where} is damaged: {error}. Restore it from a copy.")
