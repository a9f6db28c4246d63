"""Puts threads back into the listings of a Redis store after a listing was lost: evicted, deleted, or left out of a
restore.

A thread exists if its Redis keys exist, and the command `SCAN` finds these without any listing. `SCAN` looks at every
key of the server, so it is used in only three cases: if a query finds that the listing of a shard (part of a namespace)
is missing, if the first query of a checkpointer finds no listing at all, and before gc (garbage collection of blobs)
deletes anything.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

from clew._runtime.batches import batches
from clew.checkpointers.heads import unlisted
from clew.checkpointers.redis.engine import Call, Engine
from clew.checkpointers.redis.keys import SHARDS, Layout
from clew.checkpointers.redis.scripts import RESTORE, SEAL
from clew.errors import Corrupt

__all__ = ["Recovery", "in_part"]

log = logging.getLogger("clew.checkpointers.redis")

FRESH = 60.0
"""Seconds for which gc (garbage collection of blobs) relies on the last scan. Without this, it would scan again for
each batch of blobs that it deletes."""
_BATCH = 1000


class Recovery:
    """Finds the threads of a namespace that are missing in its listings (Redis keys with sorted lists of its threads),
    and puts them back."""

    def __init__(self, engine: Engine, layout: Layout, where: str) -> None:
        self._engine = engine
        self._layout = layout
        self._where = where
        self._scanned_at: float | None = None

    @property
    def has_scanned(self) -> bool:
        return self._scanned_at is not None

    async def check(self, *, recent: bool = False) -> int:
        """Put every thread that exists into the listings of threads: by update, by creation and, for a queued thread,
        by the time at which it is due. Returns the number of threads that were missing in a listing. With `recent`,
        does nothing and returns 0 if this checkpointer has checked the listings within the last minute.

        Raises `Corrupt` if the head of a thread is missing while other data of it is there: gc must not delete blobs
        then, because it is unknown which blobs such a thread refers to.
        """
        if recent and self._scanned_at is not None and time.monotonic() - self._scanned_at < FRESH:
            return 0
        restored, broken = await self.run()
        if broken:
            self._scanned_at = None
            raise unlisted([in_part(key, self._where) for key in broken])
        return restored

    async def run(self) -> tuple[int, list[str]]:
        """Put every thread that exists into the listings of threads, as `check` says. Returns the number of threads
        that were missing in a listing, and the keys (hashes of the ids) of threads whose head is missing while other
        data of them is there."""
        began = time.monotonic()
        known: set[str] = set()
        broken: list[str] = []
        restored = 0
        async for names in self._engine.scan(self._layout.thread_keys_pattern()):
            found = {key for name in names if (key := self._layout.thread_of(name)) is not None} - known
            known |= found
            for batch in batches(sorted(found), _BATCH):
                restored += await self._restore(batch, broken)
        threads = Counter(map(self._layout.shard, known))
        await self._engine.run_all([Call(SEAL, self._layout.listings(n), [threads[n]]) for n in range(SHARDS)])
        if restored:
            log.warning("%s: %d threads were missing in the listing and are back in it.", self._where, restored)
        self._scanned_at = began
        return restored, broken

    async def _restore(self, keys: list[str], broken: list[str]) -> int:
        """Put the threads with these keys (hashes of their ids) into the listings of threads. Returns how many were
        missing in a listing. Adds to the list `broken` the keys of threads that have lost their head."""
        shards = self._layout.by_shard(keys)
        calls = []
        for number, members in shards.items():
            updated, created, _, due = self._layout.listings(number)
            threads = [name for key in members for name in self._layout.thread(key)[:3]]
            calls.append(Call(RESTORE, [updated, created, due, *threads]))
        restored = 0
        for members, (added, *parts) in zip(shards.values(), await self._engine.run_all(calls), strict=True):
            restored += added
            broken += [members[(place - 4) // 3] for place in parts]
        return restored


def in_part(key: str, where: str) -> Corrupt:
    """Return the error for a thread whose head is missing while other data of it is there. `key`, the hash of the
    thread's id, names the thread in the error, because only the head has the id itself. `where` names the server."""
    return Corrupt(
        f"the head of the thread with the key {key} in {where} is missing, but not the rest of the thread. "
        "The server has evicted keys or was restored in part. Restore a copy."
    )
