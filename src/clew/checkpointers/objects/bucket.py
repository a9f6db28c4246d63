"""The operations that Clew needs of a bucket, their retries, and the test that a bucket honours conditional puts. A
conditional put writes an object only if the object is in an expected state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from clew.checkpointers.heads import micros
from clew.checkpointers.packed.clock import Clock
from clew.checkpointers.packed.packs import unique_name
from clew.checkpointers.patience import Patience
from clew.errors import InvalidInput, Unavailable

__all__ = [
    "AT_ONCE",
    "Bucket",
    "Found",
    "Listed",
    "PatientBucket",
    "Refused",
    "Tag",
    "Transient",
    "probe",
    "progress",
]


T = TypeVar("T")

AT_ONCE = 32
"""The most requests that one checkpointer makes at the same time."""
PAUSE = 0.1
"""Seconds before the first retry. The pause doubles with each retry, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = 1.0


class Tag(msgspec.Struct, frozen=True):
    """Identifies one state of an object. A conditional put with a tag succeeds only if the object is still in that state."""

    etag: str
    version: str | None = None


class Found(NamedTuple):
    """An object that was read from a bucket: its bytes (or the part of them that was asked for), the tag that
    identifies its state, and the time when it was last written."""

    data: bytes
    tag: Tag
    modified: datetime
    """When the object was last written, by the store's clock. Some stores cut the time to the second."""


class Listed(NamedTuple):
    """An object in a listing of a bucket: its key, its size in bytes, its ETag, and the time when it was last written."""

    key: str
    size: int
    etag: str
    modified: datetime


class Refused(Exception):
    """Raised if a conditional put (a write that requires the object to be in a given state) was refused, because the
    object is in another state."""


class Transient(Exception):
    """Raised if the store did not answer, or asked to retry later. If the request was a write, it may or may not have
    been made."""


class Bucket(Protocol):
    """The operations on a bucket that the driver of each cloud implements. Each may raise `Transient` if a retry can
    help, and `Unavailable` if it cannot."""

    async def get(self, key: str, start: int = 0, size: int | None = None) -> Found | None:
        """Read an object. With `size`, read only that many bytes of it from `start`, fewer if the object ends before;
        without `size`, read all of it. Returns None if the object does not exist."""

    async def put(self, key: str, data: bytes, when: Tag | Literal["absent"] | None = None) -> Tag:
        """Write an object atomically, and return its new tag. If `when` is a tag, raises `Refused` unless the object is
        in the state of that tag. If `when` is `"absent"`, raises `Refused` if the object exists. If `when` is None,
        writes in any case."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects. Objects that do not exist are ignored."""

    def list(self, prefix: str, after: str = "") -> AsyncIterator[Sequence[Listed]]:
        """Yield the objects whose key starts with `prefix` and a slash, sorted by key, as sequences of many objects
        each. With `after`, only objects whose key sorts after that text are listed."""

    async def close(self) -> None: ...


_request: ContextVar[Patience] = ContextVar("_request")


def progress() -> Callable[[], None]:
    """Return the function that reports progress of the current request, so that the request is not ended for lack of
    progress. The driver of a bucket calls this function, without arguments and on the event loop, each time that bytes
    were sent or received."""
    request = _request.get(None)
    return (lambda: None) if request is None else request.moved


class PatientBucket:
    """A bucket whose requests are retried if they fail, because the store may be restarting, failing over or
    overloaded. Nothing is retried before the bucket has answered for the first time. `patience` is the `Patience`
    object of the whole checkpointer: a request that makes no progress for as many seconds as it allows raises
    `Unavailable`.

    Retries are safe. A conditional put writes only if the object is in a given state. If the first attempt was carried
    out although no answer came, the second is refused. A refused caller reads the object and finds its own write. A
    deletion has no condition, so it is retried only if nobody ever uses the name again.
    """

    def __init__(self, bucket: Bucket, where: str, patience: Patience) -> None:
        self._bucket = bucket
        self._where = where
        self._patience = patience
        self._answered = False
        self._room = asyncio.Semaphore(AT_ONCE)

    async def get(self, key: str, start: int = 0, size: int | None = None) -> Found | None:
        return await self._ask(lambda: self._bucket.get(key, start, size))

    async def put(self, key: str, data: bytes, when: Tag | Literal["absent"] | None = None) -> Tag:
        return await self._ask(lambda: self._bucket.put(key, data, when), len(data))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects, with retries. Nobody may ever use their names again: a retry may come after somebody
        has written an object of the same name, and would delete that."""
        if keys:
            await self._ask(lambda: self._bucket.delete(keys))

    async def delete_once(self, keys: Sequence[str], while_true: Callable[[], bool]) -> None:
        """Send one request that deletes these objects, without retries: a retry could delete an object that somebody
        has meanwhile written under the same name. Sends nothing if `while_true` returns False right before. If the
        request fails, objects may be left."""

        async def attempt() -> None:
            async with self._room:
                if while_true():
                    await self._once(lambda: self._bucket.delete(keys))

        if keys:
            with suppress(Transient):
                await self._patience.limit(attempt(), is_progress=False)

    async def list(self, prefix: str) -> AsyncIterator[Sequence[Listed]]:
        chunks: AsyncIterator[Sequence[Listed]] | None = None
        after = ""

        async def next_chunk() -> Sequence[Listed] | None:
            """Return the next objects of the listing, or None at its end. A listing that fails begins again after the
            last object that it gave."""
            nonlocal chunks
            retries = self._retries()
            while True:
                under_way = chunks = chunks or aiter(self._bucket.list(prefix, after))
                try:
                    return await self._once(partial(anext, under_way, None))
                except Transient as error:
                    chunks = None
                    await retries.wait(error)

        while (chunk := await self._patience.limit(next_chunk())) is not None:
            self._answered = True
            yield chunk
            if chunk:
                after = chunk[-1].key

    async def _ask(self, request: Callable[[], Awaitable[T]], size: int = 0) -> T:
        """Make a request that sends `size` bytes, retry it if it fails, and return its answer. While 32 requests
        (`AT_ONCE`) are under way, waits for one of them to end."""
        return await self._patience.limit(self._in_turn(request, size))

    async def _in_turn(self, request: Callable[[], Awaitable[T]], size: int) -> T:
        retries = self._retries()
        while True:
            try:
                async with self._room:
                    answer = await self._once(request, size)
            except Refused:  # a refusal is an answer of the bucket too
                self._answered = True
                self._patience.moved()
                raise
            except Transient as error:
                await retries.wait(error)
                continue
            self._answered = True
            return answer

    async def _once(self, request: Callable[[], Awaitable[T]], size: int = 0) -> T:
        patience = self._patience.part()
        before = _request.set(patience)
        try:
            with patience.uploading(size):
                return await patience.limit(request())
        finally:
            _request.reset(before)

    def _retries(self) -> _Retries:
        return _Retries(self._where, self._patience.seconds if self._answered else 0)


class _Retries:
    """Decides whether a failed request is tried again, and makes the pauses between the attempts. No attempt begins
    later than `seconds` after the construction of this object; with 0 the request is not tried again. The first pause
    is 0.1 seconds. Each further one is twice as long, at most 1 second. `where` names the bucket in errors."""

    def __init__(self, where: str, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._where = where
        self._pause = PAUSE

    async def wait(self, error: Transient) -> None:
        """Wait, longer each time, and return when the request that failed with `error` is to be tried again. If the
        time in which attempts may begin would end before that, raises `Unavailable`, with the text of `error`, at
        once."""
        if time.monotonic() + self._pause > self._end:
            raise Unavailable(
                f"{self._where} cannot be reached or does not answer ({error}). "
                "Check the address and the network, then make the same call again."
            ) from None
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


NOTICED = 3_000_000
"""A difference between the store's clock and this machine's is ignored unless it is surely more than this many
microseconds: stores give their time to the second only."""


async def probe(bucket: PatientBucket, folder: str, where: str) -> Clock:
    """Test that the bucket honours conditional puts (writes that are refused if the object has changed). Raises
    `InvalidInput` if it does not. Returns a `Clock` that tells the time of the bucket's server. Writes and deletes an
    object in `folder`; if the bucket cannot be reached meanwhile, the object stays until a later cleanup. `where` names
    the bucket in errors.

    Some S3-compatible servers accept the conditions of a put and ignore them. If two processes then appended to a
    thread at the same time, both writes would succeed, and one append would be lost.
    """
    key = f"{folder}/{unique_name()}"
    try:
        clock = await _test(bucket, key, where)
    except InvalidInput:
        await bucket.delete([key])
        raise
    await bucket.delete([key])
    return clock


async def _test(bucket: PatientBucket, key: str, where: str) -> Clock:
    first = await _must_be_written(bucket, key, where, b"1", "absent")
    await _must_be_refused(bucket, key, where, "absent")
    began = Clock().now()
    second = await _must_be_written(bucket, key, where, b"2", first)
    ended = Clock().now()
    if second == first:
        raise _unfit(where, "gives two different states of an object the same tag")
    await _must_be_refused(bucket, key, where, first)
    found = await bucket.get(key)
    if found is None or found.data != b"2":
        raise _unfit(where, "does not show an object as it was written a moment before")
    await _must_be_written(bucket, key, where, b"4", found.tag)
    return Clock(_ahead(micros(found.modified), began, ended))


def _ahead(modified: int, began: int, ended: int) -> int:
    """Estimate by how many microseconds the server's clock is ahead of this machine's; negative if it is behind.
    Returns 0 unless the clocks surely differ by more than 3 seconds (`NOTICED`). All arguments are in microseconds
    since 1970.

    `modified` is when an object was written, by the server's clock, which may be cut to the second. `began` and `ended`
    are moments before and after that, by this machine's clock. They may be many seconds apart, because a request can
    take long.
    """
    least, most = modified - ended, modified + 1_000_000 - began
    return 0 if least <= NOTICED and most >= -NOTICED else (least + most) // 2


async def _must_be_written(
    bucket: PatientBucket, key: str, where: str, data: bytes, when: Tag | Literal["absent"]
) -> Tag:
    """Put an object on a condition that holds, to test the bucket, and return the object's new tag. Raises
    `InvalidInput`, which names the bucket as `where`, if the bucket refuses the put.

    A refusal does not count if the object has the new data all the same: then the put was carried out, its answer was
    lost, and only the retry was refused.
    """
    try:
        return await bucket.put(key, data, when)
    except Refused:
        found = await bucket.get(key)
    if found is None or found.data != data:
        raise _unfit(where, "refuses a conditional put whose condition holds")
    return found.tag


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
