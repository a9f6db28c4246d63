"""Lists the heads (small summaries) of the threads in a bucket. A bucket cannot sort or select, so a listing needs all
heads. But it reads only those that have changed since an earlier listing.

A listing of the bucket gives the tag of every thread's object. Heads that were read before are remembered by that tag,
in memory and in a cache object in the bucket, which a process that has read many heads writes. So a listing costs one
request for each thousand threads, and one for each thread that has changed.
"""

from __future__ import annotations

import logging

import msgspec
from blake3 import blake3

from clew._runtime.aio import together
from clew.checkpointers.heads import Head, HeadQuery, select
from clew.checkpointers.objects.bucket import Listed, PatientBucket
from clew.checkpointers.objects.queue import ObjectQueue
from clew.checkpointers.objects.threads import HEAD_PART, is_deleted, read_parts
from clew.errors import Corrupt, Unavailable
from clew.log import compression

__all__ = ["ObjectHeads"]

log = logging.getLogger("clew.checkpointers")

WORTH_KEEPING = 64
"""The cache object is written only after a process has read at least this many heads from threads' objects, and at
least an eighth of all heads."""
_SUM = 16

_Cache = dict[str, tuple[str, Head | None]]
"""Maps the key of a thread (the hash of its id) to the tag of the thread's object and the head in it, or None if the
thread was deleted."""


class ObjectHeads:
    """Lists the heads (small summaries) of the threads in one namespace, a separate part of a bucket. Remembers the
    heads for the next listing."""

    def __init__(self, bucket: PatientBucket, root: str, threads: str, queue: ObjectQueue, where: str) -> None:
        self._bucket = bucket
        self._key = f"{root}/heads"
        self._threads = threads
        self._queue = queue
        self._where = where
        self._cache: _Cache | None = None
        self._unsaved = 0

    async def all(self, query: HeadQuery) -> tuple[list[Head], list[Corrupt]]:
        """Return the heads that match the query, in its order, and an error for each thread with a damaged object."""
        if self._cache is None:
            self._cache = await self._load()
        found: _Cache = {}
        heads: list[Head] = []
        damaged: list[Corrupt] = []
        async for chunk in self._bucket.list(self._threads):
            for listed, (etag, head) in zip(
                chunk, await together([self._head(listed) for listed in chunk]), strict=True
            ):
                if isinstance(head, Corrupt):
                    damaged.append(head)
                    continue
                if head is not None:
                    heads.append(head)
                if etag and etag == listed.etag:
                    found[_name(listed)] = etag, head
        self._cache = found
        if self._unsaved >= max(WORTH_KEEPING, len(found) // 8):
            await self._save(found)
        return select(heads, query), damaged

    async def queued(self, query: HeadQuery) -> tuple[list[Head], list[Corrupt]]:
        """Return the heads that match a query for the queue of the workers, in its order, and an error for each damaged
        thread that may be in the queue. Reads only the objects of threads that have a marker. Deletes old markers of
        threads that are not in the queue."""
        markers = await self._queue.markers()
        found = await together([self._read(f"{self._threads}/{key}") for key in markers])
        heads: list[Head] = []
        damaged: list[Corrupt] = []
        stale: list[Listed] = []
        for left, (_, head) in zip(markers.values(), found, strict=True):
            if isinstance(head, Corrupt):
                damaged.append(head)
            elif head is not None and head.due is not None:
                heads.append(head)
            else:
                stale += left
        await self._queue.clear(stale)
        return select(heads, query), damaged

    async def _head(self, listed: Listed) -> tuple[str, Head | Corrupt | None]:
        """Return the tag and the head of a thread's object, which is given as found in a listing. The tag is a text
        that the bucket changes with every write. The object is read only if its tag has changed since it was last read.
        In place of the head this returns None if the thread was deleted, and a `Corrupt` error if the object is
        damaged."""
        known = self._cache.get(_name(listed)) if self._cache else None
        if known is not None and listed.etag and known[0] == listed.etag:
            return known
        etag, head = await self._read(listed.key)
        self._unsaved += bool(etag)
        return etag, head

    async def _read(self, key: str) -> tuple[str, Head | Corrupt | None]:
        """Read the head in the object of a thread, which has the name `key`. Returns the same as `_head`."""
        try:
            for size in (HEAD_PART, None):
                answer = await self._bucket.get(key, 0, size)
                if answer is None:
                    return "", None
                if is_deleted(answer.data, key, self._where):
                    return answer.tag.etag, None
                if parts := read_parts(answer.data, key, self._where):
                    return answer.tag.etag, parts.head
        except Corrupt as error:
            return "", error
        return "", Corrupt(f"{key} in {self._where} is cut short. Restore it from a copy.")

    async def _load(self) -> _Cache:
        """Read the cache object, which holds heads that were read before. Returns an empty cache if there is none or it
        cannot be decoded."""
        found = await self._bucket.get(self._key)
        if found is None:
            return {}
        try:
            packed, expected = found.data[:-_SUM], found.data[-_SUM:]
            if blake3(packed).digest(_SUM) != expected:
                raise ValueError("its sum is wrong")
            return _decode(compression.plain.decompress(packed))
        except (ValueError, msgspec.MsgspecError, compression.NotCompressed) as error:
            log.debug("%s: the cache of heads is made anew: %s", self._where, error)
            return {}

    async def _save(self, found: _Cache) -> None:
        packed = compression.plain.compress(_encode(found))
        try:
            await self._bucket.put(self._key, packed + blake3(packed).digest(_SUM))
            self._unsaved = 0
        except Unavailable as error:
            log.debug("%s: the cache of heads stays as it was: %s", self._where, error)


def _name(listed: Listed) -> str:
    return listed.key.rpartition("/")[2]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Cache).decode
