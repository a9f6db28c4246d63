"""Defines `WrappedCheckpointer`, the base class of checkpointers that add something to another checkpointer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.heads import Head, HeadQuery
from clew.log.keys import Keyring

__all__ = ["WrappedCheckpointer"]


class WrappedCheckpointer(Checkpointer):
    """A checkpointer that passes every call on to `store`, another checkpointer. A subclass overrides the methods to
    which it adds something."""

    def __init__(self, store: Checkpointer) -> None:
        self.store = store
        self.is_hasty = store.is_hasty
        self.place = store.place
        self.own_files: tuple[Path, ...] = store.own_files

    @property
    def keys(self) -> Keyring | None:
        return self.store.keys

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        await self.store.append(thread_id, frames, at=at, head=head, refs=refs)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        return await self.store.read(thread_id, start=start, stop=stop)

    async def head(self, thread_id: str) -> Head | None:
        return await self.store.head(thread_id)

    def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        return self.store.heads(query)

    async def refs(self, thread_id: str) -> set[str]:
        return await self.store.refs(thread_id)

    async def delete(self, thread_id: str) -> None:
        await self.store.delete(thread_id)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        await self.store.put_blobs(blobs)

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        return await self.store.get_blobs(digests)

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        return await self.store.missing_blobs(digests)

    def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        return self.store.blobs(untouched_for=untouched_for)

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        await self.store.delete_blobs(digests, untouched_for=untouched_for)

    async def close(self) -> None:
        await self.store.close()
