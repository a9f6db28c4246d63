"""The queue of the workers in a bucket: a folder with a marker for each thread that may be in it.

A marker is an empty object, `due/<key of the thread>/<name>`. Its name is used once, and the thread's object holds it as
long as the thread is in the queue. The marker is written before the conditional put that puts the thread into the queue,
and it is deleted after the one that takes the thread out. So every queued thread has a marker, whatever comes late, is
repeated or fails. A marker alone says nothing: a crash can leave one behind. A listing reads the markers, and then the
heads of these threads, which it believes.
"""

from __future__ import annotations

import logging

from clew.checkpointers.heads import micros
from clew.checkpointers.objects.blobs import ObjectBlobs
from clew.checkpointers.objects.bucket import Listed, PatientBucket
from clew.checkpointers.packed.packs import unique_name
from clew.errors import Unavailable

__all__ = ["ObjectQueue"]

log = logging.getLogger("clew.checkpointers")

LEFT_BEHIND = 86_400_000_000
"""The age in microseconds from which a marker is deleted if its thread is not in the queue. A process that writes a
marker puts its name into the thread's object within an hour, or never."""


class ObjectQueue:
    """The markers of one namespace, a separate part of a bucket. A marker says that a thread may be in the queue of the
    workers. A thread is always given as its key, the hash of its id."""

    def __init__(self, bucket: PatientBucket, root: str, blobs: ObjectBlobs, where: str) -> None:
        self._bucket = bucket
        self._folder = f"{root}/due"
        self._blobs = blobs
        self._where = where

    async def add(self, key: str) -> str:
        """Write a new marker for a thread, and return its name."""
        name = unique_name()
        await self._bucket.put(f"{self._folder}/{key}/{name}", b"")
        return name

    async def remove(self, key: str, name: str) -> None:
        """Delete a marker that no thread's object names any more, and none will: names are used only once. If the
        bucket cannot be reached, the marker stays, and a later listing deletes it."""
        await self._delete([f"{self._folder}/{key}/{name}"])

    async def markers(self) -> dict[str, list[Listed]]:
        """Return the markers of each thread that has any, by the thread's key."""
        found: dict[str, list[Listed]] = {}
        async for chunk in self._bucket.list(self._folder):
            for marker in chunk:
                found.setdefault(marker.key.split("/")[-2], []).append(marker)
        return found

    async def clear(self, markers: list[Listed]) -> None:
        """Delete markers of threads that are not in the queue, as far as they are more than a day old. The name of a
        newer one may be about to be written into its thread's object."""
        before = self._blobs.clock.now() - LEFT_BEHIND
        await self._delete([marker.key for marker in markers if micros(marker.modified) < before])

    async def _delete(self, keys: list[str]) -> None:
        try:
            await self._bucket.delete(keys)
        except Unavailable as error:
            log.debug("%s: markers are not deleted for now: %s", self._where, error)
