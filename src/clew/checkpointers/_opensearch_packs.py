"""The packs of threads: where older frames and refs are, in few documents of growing size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from clew.checkpointers._object_bucket import together
from clew.checkpointers._object_format import BadObject, Pack, PackTable, make_pack, pack_table
from clew.checkpointers._object_packs import PackGone, merged_with
from clew.checkpointers._opensearch_documents import read_bytes
from clew.checkpointers._opensearch_engine import Answer, Engine
from clew.checkpointers._opensearch_schema import Indices
from clew.errors import Corrupt

__all__ = ["LARGEST", "Packs", "fitting", "taken_in"]

LARGEST = 8 * 2**20
"""Bytes of a pack: a document is read and written whole, and the cluster has to hold several in memory."""
AT_ONCE = 4
"""Requests for packs that are under way at the same time."""


def taken_in(packs: Sequence[Pack], new: int) -> int:
    """How many of the newest packs a new one of this size takes in: as many as `merged_with` says and as fit."""
    count = merged_with([pack.size for pack in packs], new)
    while count and new + sum(pack.size for pack in packs[len(packs) - count :]) > LARGEST:
        count -= 1
    return count


def fitting(frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """These frames in parts that each fit a pack; one part, unless they are too large for that."""
    part: list[bytes] = []
    size = 0
    for frame in frames:
        if part and size + len(frame) > LARGEST:
            yield part
            part, size = [], 0
        part.append(frame)
        size += len(frame)
    yield part


class Packs:
    """The packs of one namespace, read and written. Each belongs to the thread whose key is part of its name."""

    def __init__(self, engine: Engine, indices: Indices, ns: str, where: str) -> None:
        self._engine = engine
        self._indices = indices
        self._ns = ns
        self._where = where
        self._room = asyncio.Semaphore(AT_ONCE)

    async def write(
        self, thread: str, older: Sequence[Pack], frames: Sequence[bytes], refs: Sequence[str]
    ) -> tuple[Pack, ...]:
        """New packs of what these packs hold, and then these frames and refs: one, as long as that fits."""
        whole = await self._whole(thread, older)
        all_frames = [frame for found, _ in whole for frame in found] + list(frames)
        all_refs = list(dict.fromkeys([ref for _, found in whole for ref in found] + list(refs)))
        made: list[tuple[Pack, bytes]] = []
        for part in fitting(all_frames):
            made.append(make_pack(part, [] if made else all_refs))
        await together([self._put(thread, pack, data) for pack, data in made])
        return tuple(pack for pack, _ in made)

    async def frames(self, thread: str, wanted: Sequence[tuple[Pack, int, int]]) -> list[bytes]:
        """The frames of these packs, of each from one number up to another."""
        whole = await self._whole(thread, [pack for pack, _, _ in wanted])
        return [frame for (frames, _), (_, low, high) in zip(whole, wanted, strict=True) for frame in frames[low:high]]

    async def refs(self, thread: str, packs: Iterable[Pack]) -> set[str]:
        named = [pack for pack in packs if pack.refs]
        documents = await self._get(thread, named, "table")
        tables = [self._table(thread, pack, found) for pack, found in zip(named, documents, strict=True)]
        return {ref for table in tables for ref in table.refs}

    async def delete(self, thread: str, packs: Iterable[Pack]) -> None:
        await self._engine.bulk(
            self._indices.data, [("delete", {"_id": self.key(thread, pack.name)}, None) for pack in packs]
        )

    def key(self, thread: str, name: str) -> str:
        return f"{self._ns}.{thread}.{name}"

    async def _put(self, thread: str, pack: Pack, data: bytes) -> None:
        document: dict[str, Any] = {
            "ns": self._ns,
            "kind": "pack",
            "owner": thread,
            "name": pack.name,
            "piece": 0,
            "made": self._indices.clock.now(),
            "table": data[: pack.table],
            "bytes": memoryview(data)[pack.table :],
        }
        async with self._room:
            await self._engine.put(self._indices.data, self.key(thread, pack.name), document)

    async def _whole(self, thread: str, packs: Sequence[Pack]) -> list[tuple[list[bytes], list[str]]]:
        documents = await self._get(thread, packs, "table,bytes")
        found = []
        for pack, document in zip(packs, documents, strict=True):
            table = self._table(thread, pack, document)
            try:
                found.append((table.frames(read_bytes(document["_source"], "bytes"), 0, pack.frames), table.refs))
            except (BadObject, ValueError) as error:
                raise self._damaged(thread, pack, error) from error
        return found

    async def _get(self, thread: str, packs: Sequence[Pack], fields: str) -> list[Answer]:
        found = await together([self._get_some(thread, some, fields) for some in _pages(packs)])
        return [document for documents in found for document in documents]

    async def _get_some(self, thread: str, packs: Sequence[Pack], fields: str) -> list[Answer]:
        keys = [self.key(thread, pack.name) for pack in packs]
        async with self._room:
            documents = await self._engine.get_all(self._indices.data, keys, fields)
        found = []
        for pack, document in zip(packs, documents, strict=True):
            if document is None:
                raise PackGone(pack)
            found.append(document)
        return found

    def _table(self, thread: str, pack: Pack, document: Answer) -> PackTable:
        try:
            return pack_table(pack, read_bytes(document["_source"], "table"))
        except (BadObject, ValueError) as error:
            raise self._damaged(thread, pack, error) from error

    def _damaged(self, thread: str, pack: Pack, error: Exception) -> Corrupt:
        return Corrupt(
            f"the document {self.key(thread, pack.name)} of {self._indices.data} in {self._where} is damaged: {error}. "
            "Restore it from a copy."
        )


def _pages(packs: Sequence[Pack]) -> Iterator[list[Pack]]:
    """As many packs as are asked for together."""
    page: list[Pack] = []
    size = 0
    for pack in packs:
        if page and size + pack.size > LARGEST:
            yield page
            page, size = [], 0
        page.append(pack)
        size += pack.size
    if page:
        yield page
