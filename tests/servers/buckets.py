"""A bucket in memory whose requests are counted, and whose answers can be lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from typing import Literal

from obstore.store import MemoryStore

from clew.checkpointers.objects.base import BucketCheckpointer
from clew.checkpointers.objects.bucket import Bucket, Found, Listed, Tag, Transient
from clew.checkpointers.objects.clouds import ObstoreBucket

__all__ = ["WatchedBucket"]

_numbers = count()


class WatchedBucket:
    """Obstore's own memory store, seen from both sides: `store` opens checkpointers on it, `keys` and `replace` act behind
    their back."""

    def __init__(self) -> None:
        self.where = f"memory bucket {next(_numbers)}"
        self._memory = MemoryStore()
        self._bucket: Bucket = ObstoreBucket(self._memory, self.where)
        self.asked: Counter[str] = Counter()
        self.bytes_put = 0
        self.bytes_got = 0
        self.lose_answers = 0
        """To so many puts, carried out, no answer comes."""
        self.lose_answer_at = 0
        """To the put with this number from now on, carried out, no answer comes; 0 for none."""
        self.ignores = ""
        """The kind of condition that is ignored: "absent" or "unchanged"."""
        self.before_put: Callable[[str], Awaitable[None]] | None = None
        """Done once, before the next put is carried out."""
        self.after_delete: Callable[[], Awaitable[None]] | None = None
        """Done once, after the next deletion is carried out, to which no answer comes."""

    def store(self, namespace: str = "") -> BucketCheckpointer:
        return BucketCheckpointer(self, self.where, "", namespace)

    def forget(self) -> None:
        """Count from nothing again."""
        self.asked.clear()
        self.bytes_put = self.bytes_got = 0

    async def keys(self, folder: str = "") -> list[str]:
        found = [meta["path"] async for chunk in self._memory.list() for meta in chunk]
        return [key for key in found if f"/{folder}" in key]

    async def read(self, key: str) -> bytes:
        return (await (await self._memory.get_async(key)).bytes_async()).to_bytes()

    async def replace(self, key: str, data: bytes) -> None:
        await self._memory.put_async(key, data)

    async def remove(self, key: str) -> None:
        await self._memory.delete_async(key)

    # What the checkpointer calls

    async def get(self, key: str, start: int = 0, size: int | None = None) -> Found | None:
        self.asked["get"] += 1
        found = await self._bucket.get(key, start, size)
        self.bytes_got += len(found.data) if found else 0
        return found

    async def put(self, key: str, data: bytes, when: Tag | Literal["absent"] | None = None) -> Tag:
        self.asked["put"] += 1
        self.bytes_put += len(data)
        if (step := self.before_put) is not None:
            self.before_put = None
            await step(key)
        if self.ignores and when is not None and self.ignores == ("absent" if when == "absent" else "unchanged"):
            when = None
        is_lost, self.lose_answer_at = self.lose_answer_at == 1, max(0, self.lose_answer_at - 1)
        tag = await self._bucket.put(key, data, when)
        if is_lost:
            raise Transient("the connection was cut")
        if self.lose_answers:
            self.lose_answers -= 1
            raise Transient("the connection was cut")
        return tag

    async def delete(self, keys: Sequence[str]) -> None:
        self.asked["delete"] += 1
        await self._bucket.delete(keys)
        if (step := self.after_delete) is not None:
            self.after_delete = None
            await step()
            raise Transient("the connection was cut")

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        self.asked["list"] += 1
        async for chunk in self._bucket.list(prefix, after):
            yield chunk

    async def close(self) -> None: ...
