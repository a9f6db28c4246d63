"""The tests of silent servers fail stores that wait for ever, wait one after the other, or do not come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Sequence
from typing import Any, TypeVar

import pytest

from clew._runtime.aio import Locks, settle
from clew.checkpointers import Head, HeadQuery, MemoryCheckpointer
from clew.checkpointers.patience import Patience
from clew.errors import Unavailable
from clew.testing.contract import silence
from clew.testing.contract.silence import SilenceContract

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class Sound(MemoryCheckpointer):
    """A store in memory behind a network that can fall silent. It is its own `FreezableStore`."""

    def __init__(self) -> None:
        super().__init__()
        self.store = self
        self.timeout = 0.2
        self.answering: Collection[str] = ()
        self.patience = Patience("the network", self.timeout)
        self.flowing = asyncio.Event()
        self.turns = Locks()
        self.under_way: set[asyncio.Future[Any]] = set()
        self.thaw()

    def freeze(self) -> None:
        self.flowing.clear()

    def thaw(self) -> None:
        self.flowing.set()

    async def travel(self) -> None:
        await self.flowing.wait()

    async def limited(self, work: Awaitable[T]) -> T:
        return await self.patience.limit(work)

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        call = asyncio.ensure_future(self.limited(self.in_turn(thread_id)))
        self.under_way.add(call)
        call.add_done_callback(self.under_way.discard)
        await settle(call)
        await super().append(thread_id, frames, at=at, head=head, refs=refs)

    async def in_turn(self, thread_id: str) -> None:
        async with self.turns[thread_id]:
            await self.travel()

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        await self.limited(self.travel())
        return await super().read(thread_id, start=start, stop=stop)

    async def head(self, thread_id: str) -> Head | None:
        await self.limited(self.travel())
        return await super().head(thread_id)

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        await self.limited(self.travel())
        async for head in super().heads(query):
            yield head

    async def refs(self, thread_id: str) -> set[str]:
        await self.limited(self.travel())
        return await super().refs(thread_id)

    async def delete(self, thread_id: str) -> None:
        await self.limited(self.travel())
        await super().delete(thread_id)

    async def put_blobs(self, *given: Any) -> None:
        await self.limited(self.travel())
        await super().put_blobs(*given)

    async def get_blobs(self, *given: Any) -> dict[str, bytes]:
        await self.limited(self.travel())
        return await super().get_blobs(*given)

    async def missing_blobs(self, *given: Any) -> set[str]:
        await self.limited(self.travel())
        return await super().missing_blobs(*given)

    async def blobs(self, **given: Any) -> AsyncIterator[str]:
        await self.limited(self.travel())
        async for digest in super().blobs(**given):
            yield digest

    async def delete_blobs(self, *given: Any, **more: Any) -> None:
        await self.limited(self.travel())
        await super().delete_blobs(*given, **more)

    async def close(self) -> None:
        if self.under_way:
            await asyncio.wait(self.under_way)
        await super().close()


class WaitsForEver(Sound):
    async def limited(self, work: Awaitable[T]) -> T:
        return await work


class EndsLate(Sound):
    """Gives up twelve times too late."""

    def __init__(self) -> None:
        super().__init__()
        self.patience = Patience("the network", 12 * self.timeout)


class OneKindWaitsForEver(Sound):
    async def refs(self, thread_id: str) -> set[str]:
        await self.travel()
        return await super().refs(thread_id)


class OneAfterTheOther(Sound):
    """Counts only from when a call has its turn."""

    async def in_turn(self, thread_id: str) -> None:
        async with self.turns[thread_id]:
            await self.patience.part().limit(self.travel())

    async def append(self, thread_id: str, *given: Any, **more: Any) -> None:
        await settle(self.in_turn(thread_id))
        await MemoryCheckpointer.append(self, thread_id, *given, **more)


class StaysDown(Sound):
    """Does not come back by itself."""

    was_frozen = False

    def freeze(self) -> None:
        super().freeze()
        self.was_frozen = True

    async def travel(self) -> None:
        await super().travel()
        if self.was_frozen:
            raise Unavailable("the connection is broken")


class EmptyForSilent(Sound):
    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        try:
            return await super().read(thread_id, start=start, stop=stop)
        except Unavailable:
            return []


SOME = SilenceContract.test_calls_to_a_silent_server_all_end_and_lose_nothing
EVERY = SilenceContract.test_every_kind_of_call_to_a_silent_server_ends
WAITING = SilenceContract.test_appends_that_wait_for_each_other_at_a_silent_server_all_end
CANCELLED = SilenceContract.test_a_cancelled_append_to_a_silent_server_ends
CLOSING = SilenceContract.test_closing_with_calls_to_a_silent_server_ends
MUTANTS = [
    (WaitsForEver, SOME),
    (WaitsForEver, EVERY),
    (WaitsForEver, WAITING),
    (WaitsForEver, CANCELLED),
    (WaitsForEver, CLOSING),
    (EndsLate, SOME),
    (EndsLate, EVERY),
    (EndsLate, WAITING),
    (EndsLate, CANCELLED),
    (EndsLate, CLOSING),
    (OneKindWaitsForEver, EVERY),
    (OneAfterTheOther, WAITING),
    (StaysDown, SOME),
    (StaysDown, CANCELLED),
    (EmptyForSilent, SOME),
]


@pytest.mark.parametrize(
    ("mutant", "test"), MUTANTS, ids=[f"{kind.__name__}-{test.__name__}" for kind, test in MUTANTS]
)
async def test_a_store_that_waits_wrongly_fails_the_test(
    mutant: type[Sound], test: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "GUARD", 3.0)
    store = mutant()
    with pytest.raises((AssertionError, TimeoutError)):
        await test(SilenceContract(), store, *_count(test))
    store.thaw()


@pytest.mark.parametrize("test", [SOME, EVERY, WAITING, CANCELLED, CLOSING])
async def test_a_sound_store_passes_the_test(test: Any) -> None:
    await test(SilenceContract(), Sound(), *_count(test))


def _count(test: Any) -> tuple[int, ...]:
    return (2,) if test is SOME else ()
