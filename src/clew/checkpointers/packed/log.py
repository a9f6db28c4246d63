"""Appends to and reads the logs of packed stores.

A packed store keeps each thread in one record: an object of a bucket or a document of an index. The record holds the
head, the newest frames and refs (the tail), and the list of packs: stored groups of older frames and refs. A ref is the
digest of a blob that the thread refers to. A conditional write of the record commits an append. What was last read or
written is remembered, together with the state of the record (a tag or number that changes with every write). So an
append is usually a single conditional write, which writes the whole tail again. When the tail grows too large, or has
been rewritten too often, it becomes a pack. The pack is written before the record, under a name of its own.

The store supplies the operations on records (`Records`) and on packs (`Packs`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from clew._runtime.aio import Locks
from clew.checkpointers.checks import NO_THREAD, check_wanted
from clew.checkpointers.heads import Head, thread_key
from clew.checkpointers.packed.packs import Pack, PackGone
from clew.errors import Conflict, Corrupt, MissingBlob, Unavailable

__all__ = ["Append", "Log", "PackedLogs", "Packs", "Records", "Tail"]

log = logging.getLogger("clew.checkpointers")

S = TypeVar("S")
"""The type of a record's state, which changes with every write, so that a write can be made on condition that the
record has not changed. It is the tag of an object, or the sequence number and term of a document."""

REMEMBERED = 32 * 2**20
"""The most bytes of memory that the remembered logs of one namespace take together. Most of it are the newest frames of
each thread."""
CONTRADICTIONS = 5
"""The most times that an append is tried again if the store refuses the write and yet shows the thread's record in
exactly the state that the write required. After that it raises `Unavailable`."""
UNCOMMITTED = 3600.0
"""Seconds after which an append that has written a pack raises `Unavailable` instead of adding the pack to the thread's
list. Packs that are in no list are deleted after a day, so a very late append could list a pack that is gone."""


class Append(NamedTuple):
    """One append to a thread: the frames to add, the number of frames that the log must have before (`at`), the
    thread's new head, also as msgpack (`encoded`), and the digests of the blobs that the frames refer to (`refs`)."""

    thread_id: str
    frames: Sequence[bytes]
    at: int
    head: Head
    encoded: bytes
    refs: Collection[str]


class Tail(NamedTuple):
    """Where the frames and refs (digests of blobs) of a log are. `packs` lists the packs, which are stored groups of
    older frames with their refs. `frames` and `refs` are the newest ones, which are not in a pack yet."""

    packs: tuple[Pack, ...] = ()
    frames: Sequence[bytes] = ()
    refs: Sequence[str] = ()
    rewritten: int = 0
    """Bytes written since the last pack was made. Each append counts all frames and refs that are not in a pack,
    because it writes them all again."""
    marker: str = ""
    """The name of the marker by which the queue of the workers finds the thread; empty if it has none."""

    @property
    def size(self) -> int:
        """The size in bytes of the frames and refs (digests of blobs) that are not in a pack yet. A pack is a stored
        group of older frames."""
        return sum(map(len, self.frames)) + 32 * len(self.refs)


class Log(NamedTuple, Generic[S]):
    """The content of a thread's record (its one object or document in the store), without the head. `state` is the
    version of the record, which changes with every write, and `frames` is the number of all frames of the thread."""

    state: S
    log_id: str
    frames: int
    tail: Tail

    @property
    def size(self) -> int:
        """About how many bytes of memory this object takes, with its frames and refs (digests of blobs)."""
        return self.tail.size + 128 * len(self.tail.packs) + 1024


class Records(Protocol[S]):
    """The operations on threads' records that a packed store implements. A thread's record is the one object or
    document that holds its head, its newest frames and the list of its packs (stored groups of older frames)."""

    async def load(self, key: str) -> Log[S] | None:
        """Read and check the record of a thread: the object or document with the newest frames and the list of the
        packs (stored groups of older frames). Returns the content of the record as a `Log`, or None if the thread does
        not exist. `key` is the hash of the thread's id."""

    async def commit(self, key: str, when: S | None, append: Append, tail: Tail) -> S | None:
        """Write the record of a thread, its one object or document: the head of `append`, and `tail`, which has the
        newest frames and the list of the packs (stored groups of older frames). `key` is the hash of the thread's id.

        Writes only if the record is still in the state `when`, a value that changes with every write; with None, only
        if there is no record. Returns the record's new state, or None if nothing was written.
        """

    async def vacancy(self, key: str) -> S | None:
        """Return the state of what the store keeps in place of a deleted thread; None if it keeps nothing. `key` is the
        hash of the thread's id. `commit` takes that state as `when`, to make the thread."""

    async def mark(self, key: str) -> str:
        """Write a new marker by which the queue of the workers finds the thread with this key (the hash of its id), and
        return its name. Returns an empty text if the store finds queued threads without markers. Called before the
        write that puts the thread into the queue and that stores the name in the thread's record."""

    async def unmark(self, key: str, marker: str) -> None:
        """Delete a marker that no record names any more. If the store cannot be reached, the marker stays, and a later
        listing deletes it."""

    def lost(self, thread_id: str, pack: Pack) -> Corrupt:
        """Return the `Corrupt` error for a thread that lists a pack (a stored group of its older frames) which does not
        exist."""


class Packs(Protocol):
    """The operations on packs that a packed store implements. A pack holds older frames of a thread; `thread` is always
    the key of that thread, which is the hash of its id. Reading a pack that does not exist raises `PackGone`."""

    def merged(self, packs: Sequence[Pack], new: int) -> int:
        """Return how many of these packs, counted from the newest, are to be merged with `new` bytes of new frames into
        one pack. A pack holds older frames of a thread; `packs` are sorted from old to new."""

    async def write(
        self, thread: str, older: Sequence[Pack], frames: Sequence[bytes], refs: Sequence[str]
    ) -> tuple[Pack, ...]:
        """Write one or more new packs (stored groups of older frames). They hold the content of the packs `older`,
        which they are to replace, followed by these frames and refs (digests of blobs). Returns the entries of the new
        packs for the thread's list of packs. `thread` is the thread's key, the hash of its id."""

    async def frames(self, thread: str, wanted: Sequence[tuple[Pack, int, int]]) -> list[bytes]:
        """Return frames from packs (stored groups of a thread's older frames), in order. Each item of `wanted` is a
        pack, the number of the first frame wanted, and the number of the frame before which to stop. The first frame of
        a pack has the number 0. `thread` is the thread's key, the hash of its id."""

    async def refs(self, thread: str, packs: Sequence[Pack]) -> set[str]:
        """Return the digests of all blobs that the frames in these packs refer to. Packs hold the older frames of a
        thread. `thread` is the thread's key, the hash of its id."""

    async def delete(self, thread: str, packs: Sequence[Pack]) -> None:
        """Delete these packs, which hold older frames of a thread. Packs that do not exist are ignored. `thread` is the
        thread's key, the hash of its id."""


class PackedLogs(Generic[S]):
    """Appends to and reads the logs of one namespace (a separate part) of a packed store. Such a store moves the older
    frames of a thread into packs: objects or documents that hold many frames each.

    `largest_tail` is the most bytes of frames and refs (digests of blobs) that a thread keeps outside packs. Each
    append writes these frames and refs again. When the appends since the last pack have together written more than
    `most_rewritten` bytes, the frames and refs become a pack too. `touch` sets the time of last use of blobs to now,
    and returns the digests of those that do not exist. `where` names the store in errors.
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
        """One lock for each thread, by the thread's key (the hash of its id). It is held while this process changes the
        thread."""
        self._logs: OrderedDict[str, Log[S]] = OrderedDict()
        self._size = 0

    async def append(self, append: Append) -> None:
        """Add frames and refs (digests of blobs) to a thread, and replace its head, in one atomic step. Raises
        `Conflict` if the log does not have exactly `append.at` frames, or has another `log_id` than the head of the
        append: then the thread was deleted and made again. Raises `MissingBlob` if a ref names a blob that does not
        exist. Does nothing if the log already holds exactly these frames at that position.

        The checks are first made with what is remembered of the log. If they fail, or the store refuses the write, the
        thread's record (its one object or document) is read again, and the checks are repeated with that.
        """
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
                check_wanted()
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
        """Return the frames of a thread from number `start` up to, not including, `stop`, or up to the end of the log
        if `stop` is None. Frames are numbered from 0; numbers past the end are ignored. Returns an empty list if the
        thread does not exist."""
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
        """Return the digests of all blobs that a thread refers to. Returns an empty set if the thread does not exist."""
        key = thread_key(thread_id)
        found = await self._load(key)
        while found is not None:
            try:
                return {*found.tail.refs, *await self._packs.refs(key, found.tail.packs)}
            except PackGone as error:
                found = await self._changed(thread_id, error.pack)
        return set()

    async def pack_names(self, key: str) -> set[str]:
        """Return the names of all packs (stored groups of older frames) that a thread has now. `key` is the hash of the
        thread's id. The set is empty if the thread does not exist."""
        found = await self._load(key)
        return {pack.name for pack in found.tail.packs} if found else set()

    def forget(self, key: str) -> None:
        """Drop from memory what is remembered of the thread with this key (the hash of its id)."""
        if (found := self._logs.pop(key, None)) is not None:
            self._size -= found.size

    async def drop(self, key: str, packs: Sequence[Pack]) -> None:
        """Delete these packs (stored groups of older frames), which the thread does not list any more. `key` is the
        hash of the thread's id. If the store cannot be reached, the packs stay, and a later cleanup deletes them."""
        try:
            await self._packs.delete(key, packs)
        except Unavailable as error:
            log.debug("%s: unused packs of thread %s are not deleted for now: %s", self._where, key, error)

    async def _commit(self, key: str, known: Log[S] | None, append: Append) -> bool:
        """Write the thread's record (its one object or document) with this append added, if the record is still as
        `known` says, or does not exist if `known` is None. Returns True if the append is written, and False if the
        record was different, so that nothing was added. If the record would become too large, its frames and refs
        (digests of blobs) are first moved to a pack, a stored group of older frames."""
        before = known.tail if known else Tail()
        tail = before._replace(
            frames=[*before.frames, *map(bytes, append.frames)],
            refs=list(dict.fromkeys([*before.refs, *append.refs])),
            marker="" if append.head.due is None else before.marker,
        )
        tail = tail._replace(rewritten=before.rewritten + tail.size)
        merged: tuple[Pack, ...] = ()
        new: tuple[Pack, ...] = ()
        began, when = time.time(), known.state if known else None
        is_large = tail.size > self._largest_tail or (
            tail.rewritten > self._most_rewritten and bool(tail.frames or tail.refs)
        )
        is_entering = append.head.due is not None and not before.marker
        if known is None and (is_large or is_entering):
            # A deletion also deletes the packs and the marker that it finds listed. Those of an earlier attempt, whose
            # answer was lost, may be among them. So the packs and the marker of this attempt are made after what is in
            # the thread's place was looked at, and the record is written only if that is still there.
            when = await self._records.vacancy(key)
        if is_large:
            kept = len(before.packs) - self._packs.merged(before.packs, tail.size)
            merged = before.packs[kept:]
            new = await self._packs.write(key, merged, tail.frames, tail.refs)
            tail = Tail((*before.packs[:kept], *new), marker=tail.marker)
        if is_entering:
            tail = tail._replace(marker=await self._records.mark(key))
        if abs(time.time() - began) > UNCOMMITTED:
            raise Unavailable(f"{self._where}: this append took more than an hour. Make the same call again.")
        state = await self._records.commit(key, when, append, tail)
        if state is None:
            await self._drop_unless_listed(key, new, tail.marker if is_entering else "")
            return False
        self._remember(key, Log(state, append.head.log_id, append.head.frames, tail))
        await self.drop(key, merged)
        if before.marker and not tail.marker:
            await self._records.unmark(key, before.marker)
        return True

    async def _drop_unless_listed(self, key: str, new: Sequence[Pack], marker: str) -> None:
        """After a refused write of a thread's record (its one object or document), delete the packs `new` (stored
        groups of older frames) and the marker that were made for that write, unless the record lists them. The record
        lists them if the store carried out the write although no answer came."""
        if not new and not marker:
            return
        found = await self._load(key)
        if new and not {pack.name for pack in new} & ({pack.name for pack in found.tail.packs} if found else set()):
            await self.drop(key, new)
        if marker and (found is None or found.tail.marker != marker):
            await self._records.unmark(key, marker)

    async def _holds(self, key: str, found: Log[S], append: Append) -> bool:
        """Return whether the thread's log already holds exactly the frames of this append, at the position of the
        append. `key` is the hash of the thread's id, and `found` says where the frames of the log are stored."""
        end = append.at + len(append.frames)
        if not append.frames or found.log_id != append.head.log_id or end > found.frames:
            return False
        try:
            return await self._frames(key, found, append.at, end) == list(map(bytes, append.frames))
        except PackGone as error:
            changed = await self._changed(append.thread_id, error.pack)
            return changed is not None and await self._holds(key, changed, append)

    async def _frames(self, key: str, found: Log[S], start: int, stop: int) -> list[bytes]:
        """Return the frames of a thread's log from number `start` up to, not including, `stop`, as far as they exist.
        `key` is the hash of the thread's id, and `found` says where the frames of the log are stored."""
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
        """Read a thread's record (its one object or document) again after one of its packs (stored groups of older
        frames) was not found. Returns the content of the record, or None if the thread does not exist any more. Raises
        `Corrupt` if the record still lists that pack."""
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
        """Read the record of a thread (its one object or document). Returns its content as a `Log`, which is also kept
        in memory, or None if the thread does not exist. `key` is the hash of the thread's id."""
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
    """Return whether this can be the first append of a thread: it is at position 0 and has frames."""
    return append.at == 0 and len(append.frames) > 0


def _reason(known: Log[S] | None, append: Append) -> str:
    """Return in words why the log cannot take this append, or an empty text if it can. `known` is the log as it was
    last read; None if there is no such thread."""
    if known is None:
        return "" if _begins(append) else NO_THREAD
    if known.log_id != append.head.log_id:
        return "the thread was deleted and made again; this is another log"
    return "" if known.frames == append.at else f"its log ends at frame {known.frames}, not {append.at}"
