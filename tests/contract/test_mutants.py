"""The contract finds what is broken: each of these stores breaks one promise, and the test of that promise fails it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import pytest

from clew.checkpointers import Checkpointer, Head, HeadQuery, MemoryCheckpointer
from clew.checkpointers.checks import Guard, check_digests
from clew.checkpointers.memory import _Log
from clew.errors import ClewError, Conflict, MissingBlob, Unavailable
from clew.testing import CheckpointerContract, OpenStore

pytestmark = pytest.mark.anyio

_tasks: set[asyncio.Task[None]] = set()


class Mutant(MemoryCheckpointer):
    """A memory store to break: what the breakages have in common."""

    def log(self, thread_id: str) -> _Log | None:
        return self._space.logs.get(thread_id)

    def end(self, thread_id: str) -> int:
        log = self.log(thread_id)
        return len(log.frames) if log else 0

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        await self.broken(thread_id, list(frames), at, head, refs)

    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, refs)

    async def sound(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await super().append(thread_id, frames, at=at, head=head, refs=refs)

    def later(self, delay: float, *given: Any) -> asyncio.Task[None]:
        """The same append, made a while from now."""

        async def work() -> None:
            await asyncio.sleep(delay)
            with suppress(ClewError):
                await self.sound(*given)

        task = asyncio.create_task(work())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        return task


# Appends


class NoCompareAndSet(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        end = self.end(thread_id)
        await self.sound(thread_id, frames, end, msgspec.structs.replace(head, frames=end + len(frames)), refs)


class RacyCompareAndSet(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        if self.end(thread_id) != at:
            await self.sound(thread_id, frames, at, head, refs)
            return
        await asyncio.sleep(0)
        log = self._space.logs.setdefault(thread_id, _Log())
        log.frames.extend(frames)
        log.refs.update(refs)
        log.head = head


class ConditionOnlyFromBelow(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        end = self.end(thread_id)
        if at > end:
            at, head = end, msgspec.structs.replace(head, frames=end + len(frames))
        await self.sound(thread_id, frames, at, head, refs)


class EarlyAcknowledgement(Mutant):
    async def broken(self, *given: Any) -> None:
        self.later(0.01, *given)


class AbandonedOnCancel(Mutant):
    async def broken(self, *given: Any) -> None:
        await asyncio.shield(self.later(0.01, *given))


class TornByCancel(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        for number, frame in enumerate(frames, start=at):
            await self.sound(thread_id, [frame], number, msgspec.structs.replace(head, frames=number + 1), refs)
            await asyncio.sleep(0)


class PartlyVisible(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames[:1], at, msgspec.structs.replace(head, frames=at + 1), refs)
        await asyncio.sleep(0)
        if frames[1:]:
            await self.sound(thread_id, frames[1:], at + 1, head, refs)


class RefsSeenAfterFrames(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, ())
        await asyncio.sleep(0)
        if log := self.log(thread_id):
            log.refs.update(refs)


class HeadWithoutFrames(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, refs)
        if (log := self.log(thread_id)) and len(frames) > 1:
            log.frames.pop()


class FramesWithoutHead(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        old = self.log(thread_id)
        kept = old.head if old else None
        await self.sound(thread_id, frames, at, head, refs)
        if (log := self.log(thread_id)) and kept and frames:
            log.head = kept


class HeadAloneUnchecked(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        if not frames and (log := self.log(thread_id)):
            log.head = head
        else:
            await self.sound(thread_id, frames, at, head, refs)


class HeadAloneMakesThreads(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        if not frames and at == 0 and self.log(thread_id) is None:
            self._space.logs[thread_id] = _Log()
            self._space.logs[thread_id].head = head
        else:
            await self.sound(thread_id, frames, at, head, refs)


class LogIdIgnored(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        log = self.log(thread_id)
        if log and log.head:
            head = msgspec.structs.replace(head, log_id=log.head.log_id)
        await self.sound(thread_id, frames, at, head, refs)


class NotIdempotent(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        if self.end(thread_id) != at:
            raise Conflict(thread_id, "the log is not there")
        await self.sound(thread_id, frames, at, head, refs)


class IdempotentAtTheEndOnly(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        if self.end(thread_id) not in (at, at + len(frames)):
            raise Conflict(thread_id, "the log has gone on")
        await self.sound(thread_id, frames, at, head, refs)


class IdempotentByPosition(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        if not frames or self.end(thread_id) != at + len(frames):
            await self.sound(thread_id, frames, at, head, refs)


class IdempotentInPart(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        log = self.log(thread_id)
        there = log.frames[at : at + len(frames)] if log else []
        if there and frames[: len(there)] == there:
            at, frames = at + len(there), frames[len(there) :]
        await self.sound(thread_id, frames, at, head, refs)


class RepeatBringsOldHeadBack(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, refs)
        if log := self.log(thread_id):
            log.head = head


class AllInABatchFailTogether(Mutant):
    def __init__(self, namespace: str = "", *, beside: MemoryCheckpointer | None = None) -> None:
        super().__init__(namespace, beside=beside)
        self.failed = False

    async def broken(self, *given: Any) -> None:
        await asyncio.sleep(0)
        try:
            await self.sound(*given)
        except Conflict:
            self.failed = True
            raise
        if self.failed:
            raise Unavailable("the transaction failed")


class DeleteLeavesRefs(Mutant):
    async def delete(self, thread_id: str) -> None:
        if log := self.log(thread_id):
            log.frames.clear()
            log.head = None

    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        if (log := self.log(thread_id)) and log.head is None:
            log.head = msgspec.structs.replace(head, frames=0)
        await self.sound(thread_id, frames, at, head, refs)


class DeleteLeavesTheLogId(Mutant):
    async def delete(self, thread_id: str) -> None:
        if log := self.log(thread_id):
            log.frames.clear()
            log.refs.clear()

    async def head(self, thread_id: str) -> Head | None:
        return await super().head(thread_id) if self.end(thread_id) else None


class DeleteOnlyHidesTheHead(Mutant):
    async def delete(self, thread_id: str) -> None:
        if log := self.log(thread_id):
            log.head = None


# Ids, heads, listings


class CaseFoldedIds(Mutant):
    def name(self, thread_id: str) -> str:
        return thread_id.casefold()

    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        name = self.name(thread_id)
        await self.sound(name, frames, at, msgspec.structs.replace(head, thread_id=name), refs)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        return await super().read(self.name(thread_id), start=start, stop=stop)


class SlashesAsUnderscores(CaseFoldedIds):
    def name(self, thread_id: str) -> str:
        return thread_id.replace("/", "_")


class Milliseconds(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        def rounded(moment: datetime) -> datetime:
            return moment.replace(microsecond=moment.microsecond // 1000 * 1000)

        times = {"created_at": rounded(head.created_at), "updated_at": rounded(head.updated_at)}
        await self.sound(thread_id, frames, at, msgspec.structs.replace(head, **times), refs)


class UnknownCostAsNothing(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, msgspec.structs.replace(head, cost_usd=head.cost_usd or 0.0), refs)


class OldHeads(Mutant):
    """Answers with a head that it has seen before, until the log grows."""

    async def head(self, thread_id: str) -> Head | None:
        found, seen = await super().head(thread_id), vars(self).setdefault("seen", {})
        if found is None or seen.get(thread_id) is None or seen[thread_id].frames != found.frames:
            seen[thread_id] = found
        return seen[thread_id]  # type: ignore[no-any-return]


class LeaseForgotten(Mutant):
    async def head(self, thread_id: str) -> Head | None:
        head = await super().head(thread_id)
        return msgspec.structs.replace(head, lease=None) if head else None


class SealForgotten(Mutant):
    async def head(self, thread_id: str) -> Head | None:
        head = await super().head(thread_id)
        return msgspec.structs.replace(head, seal="") if head else None


class SealMadeByTheStore(Mutant):
    """It changes a head as it is written, and so breaks the seal of the genuine one."""

    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        head = msgspec.structs.replace(head, updated_at=head.updated_at + timedelta(microseconds=1))
        await self.sound(thread_id, frames, at, head, refs)


class Listing(Mutant):
    """A store that lists otherwise than asked."""

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        found = [head async for head in super().heads(query)]
        for head in await self.listing(query, found):
            yield head

    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return found

    async def every(self) -> list[Head]:
        return [log.head for log in self._space.logs.values() if log.head]


class ListsByKey(Mutant):
    """Lists the threads of one moment with the heads of another, as they come."""

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        for head in [head async for head in super().heads(query)]:
            if (current := await self.head(head.thread_id)) is not None:
                yield current


class ListsByKeyWhatMatches(Mutant):
    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        for head in [head async for head in super().heads(query)]:
            current = await self.head(head.thread_id)
            if current is not None and query.matches(current):
                yield current


class ListsFromTheLastHead(Mutant):
    """Reads a long listing in small pages, each below the last: a thread that moves meanwhile is missed."""

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        left = 2**60 if query.limit is None else query.limit
        while page := [head async for head in super().heads(msgspec.structs.replace(query, limit=min(left, 100)))]:
            for head in page:
                yield head
            left -= len(page)
            query = query.after(page[-1])


class DropsAtThePageBoundary(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return found[1:] if query.cursor else found


class RepeatsAtThePageBoundary(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        start = query.start()
        return [head for head in await self.every() if query.position(head) == start][: query.limit] + found


class DropsTiesAtThePageBoundary(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        start = query.start()
        return [head for head in found if start is None or query.position(head)[0] < start[0]]


class TiesInAnyOrder(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return sorted(found, key=lambda head: (query.position(head)[0], random.random()), reverse=True)


class OldestFirst(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return found[::-1]


class OrderIgnored(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return sorted(found, key=HeadQuery().position, reverse=True)


class LimitBeforeConditions(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        newest = sorted(await self.every(), key=query.position, reverse=True)[: query.limit]
        return [head for head in newest if query.matches(head)]


class PrefixAsPattern(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return [head for head in await self.every() if fnmatchcase(head.thread_id, query.prefix + "*")]


class TitleInItsOwnCase(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return [head for head in found if query.title in head.title]


class AnyTagWillDo(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return [
            head for head in await self.every() if not query.tags or set(query.tags.items()) & set(head.tags.items())
        ]


class BeforeIncludesItsMoment(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return [head for head in await self.every() if query.updated_before in (None, head.updated_at)] + found


class ListsByOffset(Listing):
    """Goes back to the store for each head by its number in the order: what moves meanwhile shifts the rest."""

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        number = 0
        while len(found := [head async for head in MemoryCheckpointer.heads(self, query)]) > number:
            yield found[number]
            number += 1


class QueueOfAll(Listing):
    """Lists the other threads too, after those that are due."""

    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        rest = [head for head in await self.every() if query.order == "due" and head.due is None]
        return found + [head for head in rest if msgspec.structs.replace(query, order="updated").matches(head)]


class QueueLatestFirst(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return found[::-1] if query.order == "due" else found


class QueueInOrderOfUpdate(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return sorted(found, key=lambda head: head.updated_at) if query.order == "due" else found


class QueueOfBefore(Listing):
    """Lists the queue as it was at the listing before."""

    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        if query.order != "due":
            return found
        before: list[Head] = vars(self._space).get("before", found)
        vars(self._space)["before"] = found
        return before


class QueueDropsTies(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        start = query.start() if query.order == "due" else None
        return [head for head in found if start is None or query.position(head)[0] < start[0]]


class QueueOnlyOfQueued(Listing):
    """Leaves out the threads that run, which are due when their lease ends."""

    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        return [head for head in found if query.order != "due" or head.status == "queued"]


class QueueNeverLeft(Mutant):
    """Keeps a thread in the queue whose new head is not due."""

    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        log = self.log(thread_id)
        kept = log.head.due if log and log.head and head.due is None else head.due
        await self.sound(thread_id, frames, at, msgspec.structs.replace(head, due=kept), refs)


class QueueNeverMoved(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        log = self.log(thread_id)
        kept = log.head.due if log and log.head and log.head.due and head.due else head.due
        await self.sound(thread_id, frames, at, msgspec.structs.replace(head, due=kept), refs)


class QueueEnteredOnce(Mutant):
    """Forgets to put a thread into the queue again that has left it."""

    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, refs)
        left: set[str] = vars(self._space).setdefault("left", set())
        if head.due is None:
            left.add(thread_id)
        elif thread_id in left:
            self._space.queued.discard(thread_id)


class QueueBeforeTheCheck(Mutant):
    """Takes a thread out of the queue before it is known whether the append is refused."""

    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        if head.due is None:
            self._space.queued.discard(thread_id)
        await self.sound(thread_id, frames, at, head, refs)


class QueueWithoutItsPlace(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, msgspec.structs.replace(head, queue=None), refs)


class QueueLimitBeforeConditions(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        if query.order != "due" or query.limit is None:
            return found
        everyone = MemoryCheckpointer.heads(self, HeadQuery(order="due", limit=query.limit))
        return [head async for head in everyone if query.matches(head)]


class QueueHeadBesideTheHead(Mutant):
    """Puts no thread into the queue with an append of the head alone."""

    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        queued = set(self._space.queued)
        await self.sound(thread_id, frames, at, head, refs)
        if not frames and thread_id not in queued:
            self._space.queued.discard(thread_id)


class QueueOutlivesItsThread(Mutant):
    async def delete(self, thread_id: str) -> None:
        log = self.log(thread_id)
        await super().delete(thread_id)
        if log and log.head and log.head.due:
            vars(self).setdefault("gone", []).append(log.head)

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        for head in vars(self).get("gone", []):
            if query.order == "due" and query.matches(head):
                yield head
        async for head in super().heads(query):
            yield head


class NamespacesShareTheQueue(Listing):
    async def listing(self, query: HeadQuery, found: list[Head]) -> list[Head]:
        spaces = [space for space in self._spaces.values() if space is not self._space]
        others = [log.head for space in spaces for log in space.logs.values() if log.head and log.head.due]
        return found + others if query.order == "due" else found


# Blobs and namespaces


class BlobsUnchecked(Mutant):
    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        check_digests(blobs)
        self._space.blobs.update(blobs)
        self._space.touched.update(dict.fromkeys(blobs, 0.0))


class BlobsKeptUpToTheWrongOne(Mutant):
    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        for digest, data in blobs.items():
            await super().put_blobs({digest: data})


class EmptyBlobAsAbsent(Mutant):
    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        return {digest: data for digest, data in (await super().get_blobs(digests)).items() if data}


class RefsLost(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, refs)
        if log := self.log(thread_id):
            log.refs = set(refs)


class RefsUnchecked(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, ())
        if log := self.log(thread_id):
            log.refs.update(refs)


class MissingBlobAfterTheWrite(Mutant):
    async def broken(self, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Collection[str]) -> None:
        await self.sound(thread_id, frames, at, head, ())
        if missing := await self.missing_blobs(refs):
            raise MissingBlob(missing, thread_id=thread_id)
        if log := self.log(thread_id):
            log.refs.update(refs)


class DeleteTakesBlobsAlong(Mutant):
    async def delete(self, thread_id: str) -> None:
        await self.delete_blobs(await self.refs(thread_id), untouched_for=timedelta(0))
        await super().delete(thread_id)


class AskingDoesNotTouch(Mutant):
    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        return {digest for digest in digests if digest not in self._space.blobs}


class PuttingAgainDoesNotTouch(Mutant):
    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        await super().put_blobs({digest: data for digest, data in blobs.items() if digest not in self._space.blobs})


class DeletesTouchedBlobs(Mutant):
    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        await super().delete_blobs(digests, untouched_for=timedelta(0))


class NamespacesShareBlobs(Mutant):
    def __init__(self, namespace: str = "", *, beside: MemoryCheckpointer | None = None) -> None:
        super().__init__(namespace, beside=beside)
        common = self._spaces.setdefault("", self._space)
        self._space.blobs, self._space.touched = common.blobs, common.touched


class NamespacesIgnored(Mutant):
    def __init__(self, namespace: str = "", *, beside: MemoryCheckpointer | None = None) -> None:
        super().__init__("", beside=beside)


# Lifetimes


class UsableAfterClose(Mutant):
    async def close(self) -> None:
        pass


class CloseForgets(Mutant):
    async def close(self) -> None:
        await super().close()
        self._space.logs.clear()


class ReadsAnywhere(Mutant):
    """Forgets the guard in one method."""

    async def head(self, thread_id: str) -> Head | None:
        log = self.log(thread_id)
        return log.head if log else None


class OutOfReach(Guard):
    def enter(self) -> asyncio.AbstractEventLoop:
        super().enter()
        raise Unavailable("the store cannot be reached")


class Unreachable(Mutant):
    """Sound: every call says that the store cannot be reached."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = OutOfReach("this memory checkpointer")


class AbsentForUnreachable(Unreachable):
    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        try:
            return await super().read(thread_id, start=start, stop=stop)
        except Unavailable:
            return []


class TellsNobodyWhatToDoWithoutMemory(Mutant):
    """Lets a `MemoryError` through, as a call does that nothing wraps."""

    async def head(self, thread_id: str) -> Head | None:
        thread_id.encode()
        return await super().head(thread_id)


class EmptyListingForUnreachable(Unreachable):
    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        with suppress(Unavailable):
            async for head in super().heads(query):
                yield head


MUTANTS: list[tuple[type[Mutant], Callable[..., Any]]] = [
    (NoCompareAndSet, CheckpointerContract.test_an_append_where_the_log_does_not_end_is_a_conflict),
    (ConditionOnlyFromBelow, CheckpointerContract.test_an_append_past_the_start_of_an_absent_thread_is_a_conflict),
    (RacyCompareAndSet, CheckpointerContract.test_of_concurrent_appends_at_one_position_exactly_one_wins),
    (RacyCompareAndSet, CheckpointerContract.test_of_concurrent_makers_of_a_thread_exactly_one_wins),
    (RacyCompareAndSet, CheckpointerContract.test_one_append_made_many_times_at_once_is_written_once),
    (RacyCompareAndSet, CheckpointerContract.test_a_thread_deleted_while_it_is_appended_to_is_whole_or_absent),
    (EarlyAcknowledgement, CheckpointerContract.test_an_acknowledged_append_is_seen_at_once_through_another_opener),
    (AbandonedOnCancel, CheckpointerContract.test_a_cancelled_append_settles_before_the_cancellation_goes_on),
    (TornByCancel, CheckpointerContract.test_a_cancelled_append_settles_before_the_cancellation_goes_on),
    (PartlyVisible, CheckpointerContract.test_half_an_append_is_never_visible),
    (RefsSeenAfterFrames, CheckpointerContract.test_half_an_append_is_never_visible),
    (HeadWithoutFrames, CheckpointerContract.test_the_head_counts_the_frames_that_are_there),
    (FramesWithoutHead, CheckpointerContract.test_the_head_counts_the_frames_that_are_there),
    (HeadAloneUnchecked, CheckpointerContract.test_an_append_without_frames_is_conditional_too),
    (HeadAloneMakesThreads, CheckpointerContract.test_an_append_without_frames_makes_no_thread),
    (FramesWithoutHead, CheckpointerContract.test_an_acknowledged_append_is_seen_at_once_through_another_opener),
    (LogIdIgnored, CheckpointerContract.test_an_append_with_another_log_id_is_a_conflict),
    (LogIdIgnored, CheckpointerContract.test_a_thread_deleted_and_made_again_is_another_log),
    (NotIdempotent, CheckpointerContract.test_the_same_append_made_again_succeeds_and_changes_nothing),
    (NoCompareAndSet, CheckpointerContract.test_the_same_append_made_again_succeeds_and_changes_nothing),
    (IdempotentAtTheEndOnly, CheckpointerContract.test_an_append_made_again_succeeds_though_the_log_has_gone_on),
    (RepeatBringsOldHeadBack, CheckpointerContract.test_an_append_made_again_succeeds_though_the_log_has_gone_on),
    (IdempotentByPosition, CheckpointerContract.test_an_append_made_again_with_other_bytes_is_a_conflict),
    (IdempotentInPart, CheckpointerContract.test_an_append_of_which_only_a_part_is_there_is_a_conflict),
    (AllInABatchFailTogether, CheckpointerContract.test_a_conflict_does_not_harm_its_neighbours),
    (DeleteLeavesRefs, CheckpointerContract.test_refs_go_with_their_thread),
    (DeleteLeavesTheLogId, CheckpointerContract.test_a_thread_made_again_starts_from_nothing),
    (DeleteOnlyHidesTheHead, CheckpointerContract.test_a_deleted_thread_is_absent_for_all),
    (CaseFoldedIds, CheckpointerContract.test_no_two_different_ids_are_the_same_thread),
    (SlashesAsUnderscores, CheckpointerContract.test_no_two_different_ids_are_the_same_thread),
    (Milliseconds, CheckpointerContract.test_moments_come_back_to_the_microsecond_from_any_time_zone),
    (UnknownCostAsNothing, CheckpointerContract.test_an_unknown_cost_is_not_a_cost_of_nothing),
    (OldHeads, CheckpointerContract.test_a_live_thread_is_not_taken_whatever_the_clock_of_its_holder_says),
    (LeaseForgotten, CheckpointerContract.test_a_live_thread_is_not_taken_whatever_the_clock_of_its_holder_says),
    (
        LeaseForgotten,
        CheckpointerContract.test_a_thread_whose_holder_fell_silent_is_taken_by_one_after_the_time_of_its_lease,
    ),
    (LeaseForgotten, CheckpointerContract.test_a_head_comes_back_with_every_field),
    (SealForgotten, CheckpointerContract.test_a_sealed_thread_is_read_by_another_process_with_the_key),
    (SealMadeByTheStore, CheckpointerContract.test_a_sealed_thread_is_read_by_another_process_with_the_key),
    (SealForgotten, CheckpointerContract.test_a_sealed_log_that_was_cut_off_under_a_fitting_head_is_refused),
    (SealForgotten, CheckpointerContract.test_a_plain_frame_with_the_right_predecessor_is_refused_in_a_sealed_thread),
    (SealForgotten, CheckpointerContract.test_another_sealed_thread_of_the_store_does_not_pass_for_this_one),
    (DropsAtThePageBoundary, CheckpointerContract.test_pages_hold_every_thread_once),
    (RepeatsAtThePageBoundary, CheckpointerContract.test_pages_hold_every_thread_once),
    (DropsTiesAtThePageBoundary, CheckpointerContract.test_pages_hold_every_thread_once),
    (TiesInAnyOrder, CheckpointerContract.test_both_orders_are_newest_first_and_break_ties_the_same_way_each_time),
    (OrderIgnored, CheckpointerContract.test_both_orders_are_newest_first_and_break_ties_the_same_way_each_time),
    (OldestFirst, CheckpointerContract.test_the_empty_query_lists_all_newest_first),
    (LimitBeforeConditions, CheckpointerContract.test_conditions_combined_must_all_hold),
    (PrefixAsPattern, CheckpointerContract.test_a_prefix_is_compared_letter_for_letter),
    (TitleInItsOwnCase, CheckpointerContract.test_text_in_the_title_is_found_in_upper_and_lower_case),
    (AnyTagWillDo, CheckpointerContract.test_every_given_tag_must_have_its_value),
    (BeforeIncludesItsMoment, CheckpointerContract.test_moments_of_change_bound_a_listing),
    (ListsByOffset, CheckpointerContract.test_a_listing_holds_untouched_threads_once_while_others_come_and_go),
    (ListsByKey, CheckpointerContract.test_a_long_listing_is_right_while_its_threads_are_written),
    (ListsFromTheLastHead, CheckpointerContract.test_a_long_listing_is_right_while_its_threads_are_written),
    (ListsByKey, CheckpointerContract.test_long_pages_are_right_while_their_threads_are_written),
    (ListsByKeyWhatMatches, CheckpointerContract.test_long_pages_are_right_while_their_threads_are_written),
    (QueueOfAll, CheckpointerContract.test_only_threads_that_are_due_are_in_the_queue_earliest_first),
    (QueueLatestFirst, CheckpointerContract.test_only_threads_that_are_due_are_in_the_queue_earliest_first),
    (QueueInOrderOfUpdate, CheckpointerContract.test_only_threads_that_are_due_are_in_the_queue_earliest_first),
    (TiesInAnyOrder, CheckpointerContract.test_only_threads_that_are_due_are_in_the_queue_earliest_first),
    (QueueOnlyOfQueued, CheckpointerContract.test_only_threads_that_are_due_are_in_the_queue_earliest_first),
    (QueueWithoutItsPlace, CheckpointerContract.test_a_queued_head_comes_back_with_its_place_in_the_queue),
    (QueueLimitBeforeConditions, CheckpointerContract.test_conditions_select_queued_threads),
    (AnyTagWillDo, CheckpointerContract.test_conditions_select_queued_threads),
    (QueueDropsTies, CheckpointerContract.test_pages_of_the_queue_hold_every_queued_thread_once),
    (RepeatsAtThePageBoundary, CheckpointerContract.test_pages_of_the_queue_hold_every_queued_thread_once),
    (QueueNeverLeft, CheckpointerContract.test_a_thread_moves_in_the_queue_leaves_it_and_comes_back),
    (QueueNeverMoved, CheckpointerContract.test_a_thread_moves_in_the_queue_leaves_it_and_comes_back),
    (QueueEnteredOnce, CheckpointerContract.test_a_thread_moves_in_the_queue_leaves_it_and_comes_back),
    (QueueOfBefore, CheckpointerContract.test_a_thread_with_an_earlier_time_is_first_at_once),
    (QueueOutlivesItsThread, CheckpointerContract.test_a_deleted_thread_is_not_in_the_queue),
    (QueueBeforeTheCheck, CheckpointerContract.test_a_refused_append_changes_nothing_in_the_queue),
    (NamespacesShareTheQueue, CheckpointerContract.test_namespaces_share_no_queue),
    (NamespacesIgnored, CheckpointerContract.test_namespaces_share_no_queue),
    (ListsByOffset, CheckpointerContract.test_a_queue_holds_waiting_threads_once_while_others_come_and_go),
    (QueueHeadBesideTheHead, CheckpointerContract.test_a_thread_moves_in_the_queue_leaves_it_and_comes_back),
    (BlobsUnchecked, CheckpointerContract.test_a_blob_with_a_wrong_digest_is_invalid_and_none_is_kept),
    (BlobsKeptUpToTheWrongOne, CheckpointerContract.test_a_blob_with_a_wrong_digest_is_invalid_and_none_is_kept),
    (EmptyBlobAsAbsent, CheckpointerContract.test_blobs_come_back_byte_for_byte_through_another_opener),
    (RefsLost, CheckpointerContract.test_refs_are_the_union_over_all_appends),
    (RefsUnchecked, CheckpointerContract.test_a_ref_to_an_absent_blob_is_a_missing_blob_and_nothing_is_written),
    (MissingBlobAfterTheWrite, CheckpointerContract.test_a_refused_append_leaves_frames_head_and_refs_as_they_were),
    (MissingBlobAfterTheWrite, CheckpointerContract.test_a_refused_first_append_makes_no_thread),
    (DeleteTakesBlobsAlong, CheckpointerContract.test_blobs_outlive_the_thread_that_named_them),
    (AskingDoesNotTouch, CheckpointerContract.test_a_blob_put_named_or_asked_for_is_touched),
    (PuttingAgainDoesNotTouch, CheckpointerContract.test_a_blob_put_named_or_asked_for_is_touched),
    (DeletesTouchedBlobs, CheckpointerContract.test_a_blob_touched_since_it_was_listed_is_not_deleted),
    (DeletesTouchedBlobs, CheckpointerContract.test_a_fresh_blob_is_not_listed_or_deleted_within_its_grace),
    (NamespacesShareBlobs, CheckpointerContract.test_namespaces_share_no_blobs),
    (NamespacesShareBlobs, CheckpointerContract.test_namespaces_share_no_refs),
    (NamespacesIgnored, CheckpointerContract.test_namespaces_share_no_threads),
    (TellsNobodyWhatToDoWithoutMemory, CheckpointerContract.test_a_call_without_memory_is_unavailable),
    (UsableAfterClose, CheckpointerContract.test_a_closed_checkpointer_refuses_every_call),
    (ReadsAnywhere, CheckpointerContract.test_a_closed_checkpointer_refuses_every_call),
    (ReadsAnywhere, CheckpointerContract.test_use_on_a_second_event_loop_is_refused),
    (ReadsAnywhere, CheckpointerContract.test_use_in_a_forked_child_is_refused),
    (CloseForgets, CheckpointerContract.test_a_store_closed_and_opened_again_holds_everything),
    (CloseForgets, CheckpointerContract.test_closing_waits_for_what_is_under_way),
    (AbsentForUnreachable, CheckpointerContract.test_an_unreachable_store_is_unavailable_and_never_absent),
    (EmptyListingForUnreachable, CheckpointerContract.test_an_unreachable_store_is_unavailable_and_never_absent),
    (IdempotentByPosition, CheckpointerContract.test_random_operations_give_what_the_reference_gives),
    (DeleteLeavesRefs, CheckpointerContract.test_random_operations_give_what_the_reference_gives),
    (LimitBeforeConditions, CheckpointerContract.test_random_operations_give_what_the_reference_gives),
]
TESTS = list(dict.fromkeys(test for _, test in MUTANTS))

BROKEN_PROMISE = (AssertionError, pytest.fail.Exception, ClewError)
"""How a contract test fails. Any other error would be a mistake in the mutant, and prove nothing."""


@pytest.mark.parametrize(
    ("mutant", "test"), MUTANTS, ids=[f"{mutant.__name__}-{test.__name__}" for mutant, test in MUTANTS]
)
async def test_a_broken_store_fails_the_test_of_the_promise_it_breaks(
    mutant: type[Mutant], test: Callable[..., Any]
) -> None:
    with pytest.raises(BROKEN_PROMISE):
        await test(CheckpointerContract(), _given(test, mutant))
    for task in list(_tasks):
        await task


@pytest.mark.parametrize("test", TESTS, ids=[test.__name__ for test in TESTS])
async def test_a_sound_store_passes_the_same_test(test: Callable[..., Any]) -> None:
    await test(CheckpointerContract(), _given(test, Unreachable if _wants_unreachable(test) else Mutant))


def _wants_unreachable(test: Callable[..., Any]) -> bool:
    return "unreachable_store" in test.__code__.co_varnames


def _given(test: Callable[..., Any], kind: type[Mutant]) -> OpenStore | Checkpointer:
    """What the test takes in place of its fixture."""
    if _wants_unreachable(test):
        return kind()
    first = kind()
    return lambda namespace="": kind(namespace, beside=first)
