"""Leftovers: objects that a crash or a lost race left under a name that nothing names. Removed when they are a day old."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator

from clew.checkpointers._object_blobs import OWNED, ObjectBlobs
from clew.checkpointers._object_bucket import Listed, PatientBucket
from clew.checkpointers._object_format import DEAD_SIZE
from clew.checkpointers._object_threads import ObjectThreads
from clew.checkpointers.heads import micros

__all__ = ["sweep"]

LEFTOVER = 86_400_000_000
"""Microseconds after which an object that nothing names belongs to nobody: who writes one names it within the hour."""


async def sweep(bucket: PatientBucket, threads: ObjectThreads, blobs: ObjectBlobs) -> None:
    """Remove the packs and the bytes of blobs that nothing names, and finish removals that were cut short."""
    packs: defaultdict[str, list[str]] = defaultdict(list)
    async for listed in _older(bucket, threads.packs.folder, blobs.clock.now() - LEFTOVER):
        packs[listed.key.split("/")[-2]].append(listed.key)
    for thread, keys in packs.items():
        named = await threads.packs_of(thread)
        await bucket.delete([key for key in keys if key.rpartition("/")[2] not in named])
    async for listed in _older(bucket, blobs.data_folder, blobs.clock.now() - LEFTOVER):
        digest, name = listed.key.split("/")[-2:]
        if not await blobs.names(digest, name):
            await bucket.delete([listed.key])
    dead = [
        listed.key.rpartition("/")[2]
        async for listed in _older(bucket, blobs.folder, blobs.clock.now() - OWNED)
        if listed.size == DEAD_SIZE
    ]
    await blobs.finish_dead(dead)


async def _older(bucket: PatientBucket, folder: str, before: int) -> AsyncIterator[Listed]:
    async for chunk in bucket.list(folder):
        for listed in chunk:
            if micros(listed.modified) < before:
                yield listed
