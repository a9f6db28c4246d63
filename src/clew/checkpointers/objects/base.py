"""The checkpointer for a bucket of object storage: the common base of the stores for S3, Google Cloud Storage, Azure
and OCI."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from blake3 import blake3

from clew._runtime.aio import Calls
from clew.checkpointers.base import Checkpointer
from clew.checkpointers.checks import (
    Guard,
    check_append,
    check_blobs,
    check_digests,
    check_grace,
    check_namespace,
    check_query,
    check_range,
    check_thread_id,
)
from clew.checkpointers.heads import Head, HeadQuery, micros, unlisted
from clew.checkpointers.objects.blobs import OWNED, ObjectBlobs
from clew.checkpointers.objects.bucket import Bucket, Listed, PatientBucket, probe
from clew.checkpointers.objects.format import DEAD_SIZE
from clew.checkpointers.objects.heads import ObjectHeads
from clew.checkpointers.objects.threads import ObjectThreads
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.packed.clock import Clock
from clew.checkpointers.packed.log import Append
from clew.checkpointers.patience import TIMEOUT, Patience

__all__ = ["BucketCheckpointer", "sweep"]


T = TypeVar("T")
SWEEP_EVERY = 3600.0
"""The fewest seconds between two sweeps of one checkpointer. A sweep deletes leftover objects. It is part of
`delete_blobs`, which garbage collection calls."""

_proven: dict[str, Clock] = {}
"""The buckets that this process has tested and found to honour conditional puts (writes that are refused if the object
has changed), by name. Each has the clock of its server."""


@explains_lack_of_memory()
class BucketCheckpointer(Checkpointer):
    """A store in a bucket of object storage. `bucket` is the driver that makes the requests. `where` names the bucket
    in errors; all object names start with `prefix`. A call without progress for `timeout` seconds raises
    `Unavailable`."""

    def __init__(
        self, bucket: Bucket, where: str, prefix: str = "", namespace: str = "", *, timeout: float = TIMEOUT
    ) -> None:
        check_namespace(namespace)
        root = f"{prefix}/{blake3(namespace.encode()).hexdigest()}".lstrip("/")
        self.place = f"{where}/{prefix}#{namespace}" if prefix else f"{where}#{namespace}"
        self._where = where
        self._probes = f"{root}/probe"
        self._driver = bucket
        self._patience = Patience(where, timeout)
        self._bucket = PatientBucket(bucket, where, self._patience)
        self._blobs = ObjectBlobs(self._bucket, root, where)
        self._threads = ObjectThreads(self._bucket, root, self._blobs, where)
        self._heads = ObjectHeads(self._bucket, root, self._threads.folder, self._threads.queue, where)
        self._guard = Guard(f"the checkpointer of {where}")
        self._opening = asyncio.Lock()
        self._opened = False
        self._calls = Calls()
        self._swept = -SWEEP_EVERY

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place!r})"

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self._guard.enter()
        encoded = check_append(thread_id, frames, at, head, refs)
        await self._settle(self._threads.logs.append(Append(thread_id, frames, at, head, encoded, refs)))

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        self._guard.enter()
        check_range(thread_id, start, stop)
        return await self._limit(self._threads.logs.read(thread_id, start, stop))

    async def head(self, thread_id: str) -> Head | None:
        self._guard.enter()
        check_thread_id(thread_id)
        return await self._limit(self._threads.head(thread_id))

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        """Yield the heads that match the query, in its order. If objects of threads are damaged, a `Corrupt` error that
        names them is raised after all other heads."""
        self._guard.enter()
        check_query(query)
        listing = self._heads.queued if query.order == "due" else self._heads.all
        found, damaged = await self._limit(listing(query))
        for head in found:
            yield head
        if damaged:
            raise unlisted(damaged)

    async def refs(self, thread_id: str) -> set[str]:
        self._guard.enter()
        check_thread_id(thread_id)
        return await self._limit(self._threads.logs.refs(thread_id))

    async def delete(self, thread_id: str) -> None:
        self._guard.enter()
        check_thread_id(thread_id)
        await self._settle(self._threads.delete(thread_id))

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        self._guard.enter()
        check_blobs(blobs)
        await self._settle(self._blobs.put(blobs))

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        self._guard.enter()
        check_digests(digests)
        return await self._limit(self._blobs.get(digests))

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        self._guard.enter()
        check_digests(digests)
        return await self._settle(self._blobs.touch(digests))

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        self._guard.enter()
        check_grace(untouched_for)
        await self._patience.limit(self._open(), is_progress=False)
        async for digest in self._blobs.untouched(untouched_for):
            yield digest

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        self._guard.enter()
        check_digests(digests)
        check_grace(untouched_for)
        await self._settle(self._delete_blobs(digests, untouched_for))

    async def close(self) -> None:
        if self._guard.close():
            await self._calls.drain()
            await self._driver.close()

    async def _delete_blobs(self, digests: Collection[str], untouched_for: timedelta) -> None:
        await self._blobs.delete(digests, untouched_for)
        if time.monotonic() - self._swept >= SWEEP_EVERY:
            self._swept = time.monotonic()
            await sweep(self._bucket, self._threads, self._blobs, self._probes)

    async def _open(self) -> None:
        """On first use, test that the bucket honours conditional puts (writes that fail if the object has changed), and
        raise `InvalidInput` if it does not. Done once for each bucket in a process."""
        if self._opened:
            return
        async with self._opening:
            if self._where not in _proven:
                _proven[self._where] = await probe(self._bucket, self._probes, self._where)
            self._blobs.clock = _proven[self._where]
            self._opened = True

    async def _settle(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this coroutine to its end even if the caller is cancelled, and return its result. `close` waits for the
        coroutine too."""
        return await self._calls.settle(self._limit(work))

    async def _limit(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this coroutine and return its result. Raises `Unavailable` after as many seconds without progress as the
        checkpointer's `timeout` allows. The first call, before it runs the coroutine, tests that the bucket honours
        conditional puts (writes that fail if the object has changed)."""

        async def opened() -> T:
            try:
                await self._open()
            except BaseException:
                work.close()
                raise
            return await work

        return await self._patience.limit(opened(), is_progress=False)


LEFTOVER = 86_400_000_000
"""The age in microseconds from which a pack, or the object with a blob's bytes, is deleted if no thread or blob holds
its name. A process that writes such an object adds the name to a thread or blob within an hour, or never."""


async def sweep(bucket: PatientBucket, threads: ObjectThreads, blobs: ObjectBlobs, probes: str) -> None:
    """Delete leftovers of interrupted writes that are more than a day old. These are packs (older frames of a thread)
    that no thread lists, objects with blobs' bytes that no blob names, and objects in the folder `probes`, with which
    the bucket was tested. Also finish interrupted deletions of blobs, and delete the small objects that were put in
    place of deleted threads.
    """
    async for listed in _older(bucket, probes, blobs.clock.now() - LEFTOVER):
        await bucket.delete([listed.key])
    packs: defaultdict[str, list[str]] = defaultdict(list)
    async for listed in _older(bucket, threads.packs.folder, blobs.clock.now() - LEFTOVER):
        packs[listed.key.split("/")[-2]].append(listed.key)
    for thread, keys in packs.items():
        named = await threads.logs.pack_names(thread)
        await bucket.delete([key for key in keys if key.rpartition("/")[2] not in named])
    async for listed in _older(bucket, blobs.data_folder, blobs.clock.now() - LEFTOVER):
        digest, name = listed.key.split("/")[-2:]
        if not await blobs.names(digest, name):
            await bucket.delete([listed.key])
    for folder, age in ((blobs.folder, OWNED), (threads.folder, LEFTOVER)):
        old = _older(bucket, folder, blobs.clock.now() - age)
        await blobs.finish_dead([listed.key async for listed in old if listed.size == DEAD_SIZE])


async def _older(bucket: PatientBucket, folder: str, before: int) -> AsyncIterator[Listed]:
    async for chunk in bucket.list(folder):
        for listed in chunk:
            if micros(listed.modified) < before:
                yield listed
