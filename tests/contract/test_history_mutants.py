"""The history of random concurrent calls shows a store that is wrong only now and then."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Collection

import pytest

from clew.checkpointers import Head, HeadQuery, MemoryCheckpointer
from clew.testing import CheckpointerContract
from tests.contract import test_mutants as mutants
from tests.contract.test_mutants import BROKEN_PROMISE, Mutant

pytestmark = pytest.mark.anyio

EVERY = 7


class NowAndThen(Mutant):
    """Sound but for every seventh append of frames, or every seventh call of what else it breaks."""

    def __init__(self, namespace: str = "", *, beside: MemoryCheckpointer | None = None) -> None:
        super().__init__(namespace, beside=beside)
        self._counts = itertools.count(1)

    def is_time(self) -> bool:
        return next(self._counts) % EVERY == 0

    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        if frames and self.end(thread_id) == at and self.is_time():
            await self.wrong(thread_id, frames, at, head, refs)
        else:
            await self.sound(thread_id, frames, at, head, refs)

    async def wrong(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, refs)


class Loses(NowAndThen):
    async def wrong(self, *given: object) -> None: ...


class LosesTheLastFrame(NowAndThen):
    async def wrong(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, refs)
        if log := self.log(thread_id):
            log.frames.pop()


class Doubles(NowAndThen):
    async def wrong(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, [*frames, *frames], at, head, refs)


class Reorders(NowAndThen):
    async def wrong(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, refs)
        if (log := self.log(thread_id)) and len(log.frames) > 1:
            log.frames[-2:] = reversed(log.frames[-2:])


class LosesRefs(NowAndThen):
    async def wrong(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, refs)
        if log := self.log(thread_id):
            log.refs -= set(refs)

    def is_time(self) -> bool:
        return True


class KeepsTheOldHead(NowAndThen):
    async def wrong(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        log = self.log(thread_id)
        old = log.head if log else None
        await self.sound(thread_id, frames, at, head, refs)
        if (log := self.log(thread_id)) and old:
            log.head = old


class ShowsAnOldHead(NowAndThen):
    def __init__(self, namespace: str = "", *, beside: MemoryCheckpointer | None = None) -> None:
        super().__init__(namespace, beside=beside)
        self._old: dict[str, Head | None] = {}

    async def head(self, thread_id: str) -> Head | None:
        head = await super().head(thread_id)
        old = self._old.get(thread_id, head)
        self._old[thread_id] = head
        return old if self.is_time() else head


class DeletesNothing(NowAndThen):
    async def delete(self, thread_id: str) -> None:
        """Forgets every deletion of a thread with more than three frames."""
        if self.end(thread_id) <= 3:
            await super().delete(thread_id)


class ListsAllButTheNewest(NowAndThen):
    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        skipped = self.is_time()
        async for head in super().heads(query):
            if not skipped:
                yield head
            skipped = False


class LosesBlobs(NowAndThen):
    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        return dict(list((await super().get_blobs(digests)).items())[1:])


MUTANTS: list[type[Mutant]] = [
    Loses,
    LosesTheLastFrame,
    Doubles,
    Reorders,
    LosesRefs,
    KeepsTheOldHead,
    ShowsAnOldHead,
    DeletesNothing,
    ListsAllButTheNewest,
    LosesBlobs,
    mutants.RacyCompareAndSet,
    mutants.EarlyAcknowledgement,
    mutants.PartlyVisible,
]


async def visit(kind: type[Mutant]) -> None:
    """Run the test of the contract on a store of this kind."""
    first = kind()
    test = CheckpointerContract.test_the_answers_to_concurrent_calls_fit_together_in_one_order
    await test(CheckpointerContract(), lambda namespace="": kind(namespace, beside=first))


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_store_that_is_wrong_now_and_then_is_found(mutant: type[Mutant]) -> None:
    with pytest.raises(BROKEN_PROMISE):
        await visit(mutant)
    for task in list(mutants._tasks):
        await task


@pytest.mark.parametrize("sound", [Mutant, NowAndThen])
async def test_a_sound_store_passes(sound: type[Mutant]) -> None:
    await visit(sound)
