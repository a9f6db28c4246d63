"""The little that Clew asks of a bucket, and the patience with which it asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from clew.checkpointers.heads import micros
from clew.checkpointers.packed.clock import Clock
from clew.checkpointers.packed.format import unique_name
from clew.errors import InvalidInput, Unavailable

__all__ = [
    "Bucket",
    "Found",
    "Listed",
    "PatientBucket",
    "Refused",
    "Tag",
    "Transient",
    "probe",
]


T = TypeVar("T")

AT_ONCE = 32
"""Requests of one checkpointer that are under way at the same time."""
PATIENCE = 10.0
"""Seconds for which a store that has answered before is asked again: it restarts, fails over, or asks to slow down."""
PAUSE = 0.1
LONGEST_PAUSE = 1.0


class Tag(msgspec.Struct, frozen=True):
    """One state of an object. A put on condition of a tag succeeds only if the object is still in this state."""

    etag: str
    version: str | None = None


class Found(NamedTuple):
    data: bytes
    tag: Tag
    modified: datetime
    """By the store's clock, and perhaps cut to the second."""


class Listed(NamedTuple):
    key: str
    size: int
    etag: str
    modified: datetime


class Refused(Exception):
    """A conditional put found the object in another state."""


class Transient(Exception):
    """The store did not answer, or said to come back later. Whether a write was done is not known."""


class Bucket(Protocol):
    """What a driver implements. Every call may be `Transient`, or `Unavailable` where asking again is no use."""

    async def get(self, key: str, start: int = 0, size: int | None = None) -> Found | None:
        """The object, or this part of it: fewer bytes if it ends before. None if there is none."""

    async def put(self, key: str, data: bytes, when: Tag | Literal["absent"] | None = None) -> Tag:
        """Write the object, as one; `when` it is in this state, else `Refused`."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove these objects; those that are not there are no error."""

    def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        """The objects whose key starts with this prefix and a slash, by key, from beyond `after` on."""

    async def close(self) -> None: ...


class PatientBucket:
    """A bucket that is asked again while it is out of reach, for a while, and only if it has answered before.

    To ask again is always safe here: a put that was done although no answer came is refused the second time, and whoever
    is refused reads what is there.
    """

    def __init__(self, bucket: Bucket, where: str) -> None:
        self._bucket = bucket
        self._where = where
        self._answered = False
        self._room = asyncio.Semaphore(AT_ONCE)

    async def get(self, key: str, start: int = 0, size: int | None = None) -> Found | None:
        return await self._ask(lambda: self._bucket.get(key, start, size))

    async def put(self, key: str, data: bytes, when: Tag | Literal["absent"] | None = None) -> Tag:
        return await self._ask(lambda: self._bucket.put(key, data, when))

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            await self._ask(lambda: self._bucket.delete(keys))

    async def list(self, prefix: str) -> AsyncIterator[Sequence[Listed]]:
        patience = _Patience(self._answered, self._where)
        after = ""
        while True:
            try:
                async for chunk in self._bucket.list(prefix, after):
                    self._answered = True
                    yield chunk
                    if chunk:
                        after = chunk[-1].key
                        patience = _Patience(True, self._where)
            except Transient as error:
                await patience.wait(error)
                continue
            return

    async def _ask(self, request: Callable[[], Awaitable[T]]) -> T:
        patience = _Patience(self._answered, self._where)
        while True:
            try:
                async with self._room:
                    answer = await request()
            except Refused:
                self._answered = True
                raise
            except Transient as error:
                await patience.wait(error)
                continue
            self._answered = True
            return answer


class _Patience:
    def __init__(self, answered: bool, where: str) -> None:
        self._end = time.monotonic() + (PATIENCE if answered else 0)
        self._where = where
        self._pause = PAUSE

    async def wait(self, error: Transient) -> None:
        """Wait a little before the next attempt, or give up."""
        if time.monotonic() + self._pause > self._end:
            raise Unavailable(
                f"{self._where} cannot be reached or does not answer ({error}). "
                "Check the address and the network, then make the same call again."
            ) from None
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


NOTICED = 3_000_000
"""Microseconds that the two clocks have to differ by: the store's is told to the second only."""


async def probe(bucket: PatientBucket, root: str, where: str) -> Clock:
    """Try what all depends on: that of two who make an object one is refused, and of two who replace it too.

    Some servers that speak S3 take the conditions of a put and ignore them. There every writer would be told that it had
    won, so such a store is refused.
    """
    key = f"{root}/probe/{unique_name()}"
    first = await bucket.put(key, b"1", "absent")
    try:
        await _must_be_refused(bucket, key, where, "absent")
        second = await bucket.put(key, b"2", first)
        if second == first:
            raise _unfit(where, "gives two different states of an object the same tag")
        await _must_be_refused(bucket, key, where, first)
        found = await bucket.get(key)
        if found is None or found.data != b"2":
            raise _unfit(where, "does not show an object as it was written a moment before")
        await bucket.put(key, b"4", found.tag)
    except Refused:
        raise _unfit(where, "refuses a conditional put whose condition holds") from None
    finally:
        await bucket.delete([key])
    ahead = micros(found.modified) - micros(datetime.now(UTC))
    return Clock(ahead if abs(ahead) > NOTICED else 0)


async def _must_be_refused(bucket: PatientBucket, key: str, where: str, when: Tag | Literal["absent"]) -> None:
    try:
        await bucket.put(key, b"3", when)
    except Refused:
        return
    kind = "create an object only if it is absent" if when == "absent" else "replace an object only if it is unchanged"
    raise _unfit(where, f"was asked to {kind}, and overwrote it")


def _unfit(where: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"{where} {reason}. Without conditional puts two writers would both be told that they had won, and one would lose "
        "its work. Use a store that honours If-Match and If-None-Match: Amazon S3, Google Cloud Storage, Azure, OCI, "
        "SeaweedFS, MinIO or Ceph of recent versions."
    )
