"""The append loop of the packed stores, and reads of their logs.

A packed store keeps each thread in one record: an object of a bucket or a document of an index. The record holds the head,
the newest frames and refs (the tail), and the list of packs with the older ones. A conditional write of the record commits
an append. What was last read or written is remembered with the state of the record, so an append is usually a single
conditional write, which writes the whole tail again. When the tail grows too large, or has been rewritten too often, it
becomes a pack. The pack is written before the record, under a name of its own.

The store supplies two primitives, to load and to commit a record (`Records`), and its packs (`Packs`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from clew._runtime.aio import Locks
from clew.checkpointers.heads import Head, thread_key
from clew.checkpointers.packed.packs import Pack, PackGone
from clew.errors import Conflict, Corrupt, MissingBlob, Unavailable

__all__ = ["Append", "Log", "PackedLogs", "Packs", "Records", "Tail"]

log = logging.getLogger("clew.checkpointers")

S = TypeVar("S")
"""The state of a record, on which a write is conditional: a tag, or a sequence number and a term."""

REMEMBERED = 32 * 2**20
"""The most bytes of tails that are kept in memory."""
CONTRADICTIONS = 5
"""How often a store may refuse a write and yet show the record in the state that the write required."""
UNCOMMITTED = 3600.0
"""Seconds after which an append gives up instead of naming a pack that it has written. Sweeps delete unnamed packs after a
day."""


class Append(NamedTuple):
    """The arguments of `Checkpointer.append`, and the head as msgpack."""

    thread_id: str
    frames: Sequence[bytes]
    at: int
    head: Head
    encoded: bytes
    refs: Collection[str]


class Tail(NamedTuple):
    """Where the frames and refs of a log are: the packs, and the frames and refs that are not in a pack yet."""

    packs: tuple[Pack, ...] = ()
    frames: Sequence[bytes] = ()
    refs: Sequence[str] = ()
    rewritten: int = 0
    """Bytes of tail written since the last pack was made."""

    @property
    def size(self) -> int:
        """Bytes of the frames and refs that are not in a pack."""
        return sum(map(len, self.frames)) + 32 * len(self.refs)


class Log(NamedTuple, Generic[S]):
    """The content of a thread's record, without the head."""

    state: S
    log_id: str
    frames: int
    tail: Tail

    @property
    def size(self) -> int:
        """About how many bytes of memory this log takes."""
        return self.tail.size + 128 * len(self.tail.packs) + 1024


class Records(Protocol[S]):
    """The operations that a packed store supplies: load and commit the record of a thread, and explain a lost pack."""

    async def load(self, key: str) -> Log[S] | None:
        """Read and check the record of the thread with this key. Returns None if the thread does not exist."""

    async def commit(self, key: str, when: S | None, append: Append, tail: Tail) -> S | None:
        """Write the record of a thread with the head of `append` and this tail. Returns its new state, or None if the record
        is not in the state `when` any more, or exists although `when` is None; then nothing is written."""

    def lost(self, thread_id: str, pack: Pack) -> Corrupt:
        """Return the error for a thread that lists a pack which does not exist."""


class Packs(Protocol):
    """The packs of a packed store. `thread` is always the key of the thread that a pack belongs to. Reading a pack that does
    not exist raises `PackGone`."""

    def merged(self, packs: Sequence[Pack], new: int) -> int:
        """Return how many of the newest packs should be merged into a new pack of `new` bytes."""

    async def write(
        self, thread: str, older: Sequence[Pack], frames: Sequence[bytes], refs: Sequence[str]
    ) -> tuple[Pack, ...]:
        """Write the content of the packs `older`, followed by these frames and refs, as one or more new packs."""

    async def frames(self, thread: str, wanted: Sequence[tuple[Pack, int, int]]) -> list[bytes]:
        """Read frames of packs. Each item of `wanted` is a pack and the range of frame numbers within it."""

    async def refs(self, thread: str, packs: Sequence[Pack]) -> set[str]:
        """Read the refs of these packs."""

    async def delete(self, thread: str, packs: Sequence[Pack]) -> None:
        """Delete these packs. Packs that do not exist are ignored."""


class PackedLogs(Generic[S]):
    """Appends to and reads the logs of one namespace of a packed store.

    `largest_tail` is the most bytes of frames and refs in a record. The tail also becomes a pack when `most_rewritten` bytes
    of it have been rewritten. `touch` touches blobs and returns the digests of those that do not exist.
    """

    def __init__(
        self,
        records: Records[S],
        packs: Packs,
        touch: Callable[[Iterable[str]], Awaitable[set[str]]],
        where: str,
        *,
        largest_tail: int,
        most_rewritten: int,
    ) -> None:
        self._records = records
        self._packs = packs
        self._touch = touch
        self._where = where
        self._largest_tail = largest_tail
        self._most_rewritten = most_rewritten
        self.locks = Locks()
        """One lock for each thread's key, held while this process changes the thread."""
        self._logs: OrderedDict[str, Log[S]] = OrderedDict()
        self._size = 0

    async def append(self, append: Append) -> None:
        """Append as `Checkpointer.append` promises. The remembered state of the log is trusted until it contradicts the
        append or the store refuses the write; then the record is read, and decides."""
        key = thread_key(append.thread_id)
        async with self.locks[key]:
            known, sure, touched = self._logs.get(key), False, False
            contradicted = 0
            while True:
                if not sure and ((known is None and not _begins(append)) or (known and _reason(known, append))):
                    known, sure = await self._load(key), True
                if reason := _reason(known, append):
                    if known is not None and await self._holds(key, known, append):
                        return
                    raise Conflict(append.thread_id, reason)
                if append.refs and not touched:
                    missing = await self._touch(append.refs)
                    if missing and not sure:
                        known, sure = await self._load(key), True
                        continue
                    if missing:
                        raise MissingBlob(missing, thread_id=append.thread_id)
                    touched = True
                gone: Pack | None = None
                try:
                    if await self._commit(key, known, append):
                        return
                except PackGone as error:
                    gone = error.pack
                before, known, sure = known, await self._load(key), True
                if (before.state if before else None) == (known.state if known else None):
                    if gone is not None:
                        raise self._records.lost(append.thread_id, gone)
                    contradicted += 1
                    await self._contradicted(append.thread_id, contradicted)

    async def read(self, thread_id: str, start: int, stop: int | None) -> list[bytes]:
        """Read frames as `Checkpointer.read` promises."""
        key = thread_key(thread_id)
        found = await self._load(key)
        while found is not None:
            end = found.frames if stop is None else min(stop, found.frames)
            try:
                return await self._frames(key, found, start, end)
            except PackGone as error:
                found = await self._changed(thread_id, error.pack)
        return []

    async def refs(self, thread_id: str) -> set[str]:
        """Read refs as `Checkpointer.refs` promises."""
        key = thread_key(thread_id)
        found = await self._load(key)
        while found is not None:
            try:
                return {*found.tail.refs, *await self._packs.refs(key, found.tail.packs)}
            except PackGone as error:
                found = await self._changed(thread_id, error.pack)
        return set()

    async def pack_names(self, key: str) -> set[str]:
        """Return the names of the packs that the record of the thread with this key lists."""
        found = await self._load(key)
        return {pack.name for pack in found.tail.packs} if found else set()

    def forget(self, key: str) -> None:
        """Drop what is remembered of a thread, because it is deleted."""
        if (found := self._logs.pop(key, None)) is not None:
            self._size -= found.size

    async def drop(self, key: str, packs: Sequence[Pack]) -> None:
        """Delete packs that the thread does not list any more. An unreachable store is ignored: the packs are swept
        later."""
        try:
            await self._packs.delete(key, packs)
        except Unavailable as error:
            log.debug("%s: unused packs of thread %s are not deleted for now: %s", self._where, key, error)

    async def _commit(self, key: str, known: Log[S] | None, append: Append) -> bool:
        """Write the thread's record with this append added, on condition that it has not changed since `known`. Returns
        False if it has."""
        before = known.tail if known else Tail()
        tail = before._replace(
            frames=[*before.frames, *map(bytes, append.frames)],
            refs=list(dict.fromkeys([*before.refs, *append.refs])),
        )
        tail = tail._replace(rewritten=before.rewritten + tail.size)
        merged: tuple[Pack, ...] = ()
        new: tuple[Pack, ...] = ()
        began = time.time()
        if tail.size > self._largest_tail or (tail.rewritten > self._most_rewritten and (tail.frames or tail.refs)):
            kept = len(before.packs) - self._packs.merged(before.packs, tail.size)
            merged = before.packs[kept:]
            new = await self._packs.write(key, merged, tail.frames, tail.refs)
            tail = Tail((*before.packs[:kept], *new))
        if abs(time.time() - began) > UNCOMMITTED:
            raise Unavailable(f"{self._where}: this append took more than an hour. Make the same call again.")
        state = await self._records.commit(key, known.state if known else None, append, tail)
        if state is None:
            await self._drop_unless_listed(key, new)
            return False
        self._remember(key, Log(state, append.head.log_id, append.head.frames, tail))
        await self.drop(key, merged)
        return True

    async def _drop_unless_listed(self, key: str, new: Sequence[Pack]) -> None:
        """After a refused write, delete the packs that were written for it, unless the thread's record lists them. It
        does if our own write had been carried out although no answer came."""
        if new and not {pack.name for pack in new} & await self.pack_names(key):
            await self.drop(key, new)

    async def _holds(self, key: str, found: Log[S], append: Append) -> bool:
        """Return whether the log already holds exactly the frames of this append, at the same position."""
        end = append.at + len(append.frames)
        if not append.frames or found.log_id != append.head.log_id or end > found.frames:
            return False
        try:
            return await self._frames(key, found, append.at, end) == list(map(bytes, append.frames))
        except PackGone as error:
            changed = await self._changed(append.thread_id, error.pack)
            return changed is not None and await self._holds(key, changed, append)

    async def _frames(self, key: str, found: Log[S], start: int, stop: int) -> list[bytes]:
        """Read the frames from `start` up to `stop`, as far as they exist."""
        wanted: list[tuple[Pack, int, int]] = []
        first = 0
        for pack in found.tail.packs:
            low, high = max(start, first) - first, min(stop, first + pack.frames) - first
            if low < high:
                wanted.append((pack, low, high))
            first += pack.frames
        packed = await self._packs.frames(key, wanted) if wanted else []
        return [*packed, *found.tail.frames[max(0, start - first) : max(0, stop - first)]]

    async def _changed(self, thread_id: str, pack: Pack) -> Log[S] | None:
        """Load a thread again after one of its packs was missing. Raises `Corrupt` if it still lists that pack."""
        now = await self._load(thread_key(thread_id))
        if now is not None and pack in now.tail.packs:
            raise self._records.lost(thread_id, pack)
        return now

    async def _contradicted(self, thread_id: str, times: int) -> None:
        if times > CONTRADICTIONS:
            raise Unavailable(
                f"thread {thread_id!r}: {self._where} refuses to write it, yet shows it unchanged. Make the same call again."
            )
        await asyncio.sleep(0.05 * times)

    async def _load(self, key: str) -> Log[S] | None:
        """Read the record of the thread with this key, and remember it."""
        found = await self._records.load(key)
        if found is None:
            self.forget(key)
        else:
            self._remember(key, found)
        return found

    def _remember(self, key: str, found: Log[S]) -> None:
        self.forget(key)
        self._logs[key] = found
        self._size += found.size
        while self._size > REMEMBERED and len(self._logs) > 1:
            self.forget(next(iter(self._logs)))


def _begins(append: Append) -> bool:
    """Return whether this can be the first append of a thread."""
    return append.at == 0 and len(append.frames) > 0


def _reason(known: Log[S] | None, append: Append) -> str:
    """Return why the log cannot take this append, or an empty text if it can."""
    if known is None:
        return "" if _begins(append) else f"there is no such log to go on from frame {append.at}"
    if known.log_id != append.head.log_id:
        return "the thread was deleted and made again; this is another log"
    return "" if known.frames == append.at else f"its log ends at frame {known.frames}, not {append.at}"
