"""The threads of a bucket: one object each. A conditional put of that object commits an append.

The object holds the head, the newest frames and refs (the tail), and the list of packs with the older ones. What was
last read or written is remembered with its tag, so an append is usually a single conditional put. It writes the whole
tail again, at most 256 KiB. When the tail grows beyond that, or the rewritten bytes add up to 1 MiB, the tail becomes a
pack. The pack is written before the thread's object, under a name of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from clew._runtime.aio import Locks, together
from clew.checkpointers.heads import Head, thread_key
from clew.checkpointers.objects.blobs import ObjectBlobs
from clew.checkpointers.objects.bucket import PatientBucket, Refused, Tag
from clew.checkpointers.packed.format import (
    VERSION,
    BadObject,
    Index,
    NewerObject,
    Pack,
    ThreadParts,
    thread_object,
    thread_parts,
    thread_tail,
)
from clew.checkpointers.packed.packs import PackGone, Packs, merged_with
from clew.errors import Conflict, Corrupt, MissingBlob, NewerFormat, Unavailable

__all__ = ["HEAD_PART", "ObjectThreads", "read_parts"]

log = logging.getLogger("clew.checkpointers")

TAIL = 256 * 2**10
"""The most bytes of frames and refs in a thread's own object."""
REWRITTEN = 2**20
"""The tail becomes a pack when this many bytes of it have been rewritten. Writing them takes about as long as one more
request: a pack made earlier would cost more than it saves, one made later would save less than it could."""
HEAD_PART = 4096
"""Bytes to read when only the head is wanted. They nearly always hold all of it."""
REMEMBERED = 32 * 2**20
"""The most bytes of tails that are kept in memory."""
CONTRADICTIONS = 5
"""How often a store may refuse a put and yet show the object in the state that the put required."""
UNCOMMITTED = 3600.0
"""Seconds after which an append gives up instead of naming a pack that it has written. Sweeps delete unnamed packs after a
day."""


class _Log(NamedTuple):
    """The content of a thread's object, decoded, without the head."""

    tag: Tag
    log_id: str
    frames: int
    packs: tuple[Pack, ...]
    tail: list[bytes]
    refs: list[str]
    """The refs in the tail."""
    rewritten: int

    @property
    def size(self) -> int:
        return sum(map(len, self.tail)) + 32 * len(self.refs) + HEAD_PART


class _Append(NamedTuple):
    thread_id: str
    frames: Sequence[bytes]
    at: int
    head: Head
    encoded: bytes
    refs: Collection[str]


class ObjectThreads:
    """The threads of one namespace of a bucket."""

    def __init__(self, bucket: PatientBucket, root: str, blobs: ObjectBlobs, where: str) -> None:
        self._bucket = bucket
        self._where = where
        self._blobs = blobs
        self.folder = f"{root}/threads"
        self.packs = Packs(bucket, f"{root}/packs", where)
        self._logs: OrderedDict[str, _Log] = OrderedDict()
        self._size = 0
        self._locks = Locks()

    async def append(
        self, thread_id: str, frames: Sequence[bytes], at: int, head: Head, encoded: bytes, refs: Collection[str]
    ) -> None:
        """Append as `Checkpointer.append` promises. The remembered state of the log is trusted until it contradicts the
        append or the store refuses the put; then the object is read, and decides."""
        append = _Append(thread_id, frames, at, head, encoded, refs)
        key = thread_key(thread_id)
        async with self._locks[key]:
            known, sure, touched = self._logs.get(key), False, False
            contradicted = 0
            while True:
                if not sure and ((known is None and not _begins(append)) or (known and _reason(known, append))):
                    known, sure = await self._load(key), True
                if reason := _reason(known, append):
                    if known is not None and await self._holds(key, known, append):
                        return
                    raise Conflict(thread_id, reason)
                if refs and not touched:
                    missing = await self._blobs.touch(refs)
                    if missing and not sure:
                        known, sure = await self._load(key), True
                        continue
                    if missing:
                        raise MissingBlob(missing, thread_id=thread_id)
                    touched = True
                try:
                    await self._commit(key, known, append)
                except (Refused, PackGone) as error:
                    before, known, sure = known, await self._load(key), True
                    if (before.tag if before else None) == (known.tag if known else None):
                        if isinstance(error, PackGone):
                            raise self._gone(thread_id, error.pack) from None
                        contradicted += 1
                        await self._contradicted(thread_id, contradicted)
                else:
                    return

    async def read(self, thread_id: str, start: int, stop: int | None) -> list[bytes]:
        key = thread_key(thread_id)
        found = await self._load(key)
        while found is not None:
            end = found.frames if stop is None else min(stop, found.frames)
            try:
                return await self._frames(key, found, start, end)
            except PackGone as error:
                found = await self._changed(thread_id, error.pack)
        return []

    async def head(self, thread_id: str) -> Head | None:
        key = thread_key(thread_id)
        name = f"{self.folder}/{key}"
        found = await self._bucket.get(name, 0, HEAD_PART)
        if found is None:
            return None
        parts = read_parts(found.data, name, self._where)
        if parts is None:
            found = await self._bucket.get(name)
            parts = read_parts(found.data, name, self._where) if found else None
        return parts.head if parts else None

    async def refs(self, thread_id: str) -> set[str]:
        key = thread_key(thread_id)
        found = await self._load(key)
        while found is not None:
            try:
                packed = await together([self.packs.refs(key, pack) for pack in found.packs])
            except PackGone as error:
                found = await self._changed(thread_id, error.pack)
            else:
                return {*found.refs, *(ref for refs in packed for ref in refs)}
        return set()

    async def delete(self, thread_id: str) -> None:
        """Delete a thread: first its object, then its packs. Packs that a crash leaves behind are invisible and are swept
        later."""
        key = thread_key(thread_id)
        async with self._locks[key]:
            name = f"{self.folder}/{key}"
            found = await self._bucket.get(name)
            self._forget(key)
            if found is None:
                return
            try:
                parts = read_parts(found.data, name, self._where)
            except Corrupt:
                parts = None  # its packs are unknown, and are swept later
            await self._bucket.delete([name])
            if parts and parts.contents:
                await self.packs.delete(key, parts.contents.packs)

    async def packs_of(self, key: str) -> set[str]:
        """Return the names of the packs that the object of the thread with this key lists."""
        found = await self._load(key)
        return {pack.name for pack in found.packs} if found else set()

    async def _commit(self, key: str, known: _Log | None, append: _Append) -> None:
        """Write the thread's object with this append added, on condition that it has not changed since `known`. Raises
        `Refused` if it has."""
        packs = known.packs if known else ()
        tail = [*(known.tail if known else ()), *map(bytes, append.frames)]
        refs = list(dict.fromkeys([*(known.refs if known else ()), *append.refs]))
        inline = sum(map(len, tail)) + 32 * len(refs)
        rewritten = (known.rewritten if known else 0) + inline
        taken_in: tuple[Pack, ...] = ()
        new: Pack | None = None
        began = time.time()
        if inline > TAIL or (rewritten > REWRITTEN and (tail or refs)):
            count = merged_with([pack.size for pack in packs], inline)
            packs, taken_in = packs[: len(packs) - count], packs[len(packs) - count :]
            new = await self.packs.write(key, taken_in, tail, refs)
            packs, tail, refs, rewritten = (*packs, new), [], [], 0
        if abs(time.time() - began) > UNCOMMITTED:
            raise Unavailable(f"{self._where}: this append took more than an hour. Make the same call again.")
        data = thread_object(append.encoded, packs, tail, refs, rewritten)
        try:
            tag = await self._bucket.put(f"{self.folder}/{key}", data, known.tag if known else "absent")
        except Refused:
            if new is not None:
                await self._drop_unless_named(key, new)
            raise
        self._remember(key, _Log(tag, append.head.log_id, append.head.frames, packs, tail, refs, rewritten))
        await self._drop(key, taken_in)

    async def _drop_unless_named(self, key: str, new: Pack) -> None:
        """After a refused put, delete the pack that was written for it, unless the thread's object lists it. It does if
        our own put had been carried out although no answer came."""
        if new.name not in await self.packs_of(key):
            await self._drop(key, (new,))

    async def _drop(self, key: str, packs: Sequence[Pack]) -> None:
        """Delete packs that the thread does not list any more. A failure does not fail the append: the packs are swept
        later."""
        try:
            await self.packs.delete(key, packs)
        except Unavailable as error:
            log.debug("%s: unused packs of thread %s are not deleted for now: %s", self._where, key, error)

    async def _holds(self, key: str, found: _Log, append: _Append) -> bool:
        """Return whether the log already holds exactly the frames of this append, at the same position."""
        end = append.at + len(append.frames)
        if not append.frames or found.log_id != append.head.log_id or end > found.frames:
            return False
        try:
            return await self._frames(key, found, append.at, end) == list(map(bytes, append.frames))
        except PackGone as error:
            changed = await self._changed(append.thread_id, error.pack)
            return changed is not None and await self._holds(key, changed, append)

    async def _frames(self, key: str, found: _Log, start: int, stop: int) -> list[bytes]:
        """Read the frames from `start` up to `stop`, as far as they exist."""
        wanted, first = [], 0
        for pack in found.packs:
            low, high = max(start, first) - first, min(stop, first + pack.frames) - first
            if low < high:
                wanted.append(self.packs.frames(key, pack, low, high))
            first += pack.frames
        packed = await together(wanted)
        tail = found.tail[max(0, start - first) : max(0, stop - first)]
        return [frame for frames in packed for frame in frames] + tail

    async def _changed(self, thread_id: str, pack: Pack) -> _Log | None:
        """Load a thread again after one of its packs was missing. Raises `Corrupt` if it still lists that pack."""
        now = await self._load(thread_key(thread_id))
        if now is not None and pack in now.packs:
            raise self._gone(thread_id, pack)
        return now

    def _gone(self, thread_id: str, pack: Pack) -> Corrupt:
        return Corrupt(
            f"thread {thread_id!r} in {self._where} lacks the pack {self.packs.key(thread_key(thread_id), pack)} with "
            f"{pack.frames} of its frames. It was deleted behind Clew's back, most likely by a lifecycle rule of the "
            "bucket. Take this prefix out of all rules that expire objects, and restore the pack from a copy or a version."
        )

    async def _contradicted(self, thread_id: str, times: int) -> None:
        if times > CONTRADICTIONS:
            raise Unavailable(
                f"thread {thread_id!r}: {self._where} refuses to replace its object, yet shows it unchanged. "
                "Make the same call again."
            )
        await asyncio.sleep(0.05 * times)

    async def _load(self, key: str) -> _Log | None:
        """Read, check and remember the object of the thread with this key. Returns None if the thread does not exist."""
        name = f"{self.folder}/{key}"
        found = await self._bucket.get(name)
        if found is None:
            self._forget(key)
            return None
        parts = read_parts(found.data, name, self._where)
        try:
            if parts is None or parts.contents is None:
                raise BadObject("it is cut short")
            tail, refs = thread_tail(found.data, parts)
            self._check_count(parts.head, parts.contents)
        except BadObject as error:
            raise Corrupt(f"{name} in {self._where} is damaged: {error}. Restore it from a copy.") from error
        head, index = parts.head, parts.contents
        loaded = _Log(found.tag, head.log_id, head.frames, index.packs, tail, refs, index.rewritten)
        self._remember(key, loaded)
        return loaded

    def _check_count(self, head: Head, index: Index) -> None:
        if sum(pack.frames for pack in index.packs) + len(index.sizes) != head.frames:
            raise BadObject("its head and its index differ in the number of frames")

    def _remember(self, key: str, found: _Log) -> None:
        self._forget(key)
        self._logs[key] = found
        self._size += found.size
        while self._size > REMEMBERED and len(self._logs) > 1:
            self._forget(next(iter(self._logs)))

    def _forget(self, key: str) -> None:
        if (found := self._logs.pop(key, None)) is not None:
            self._size -= found.size


def read_parts(data: bytes, name: str, where: str) -> ThreadParts | None:
    """Decode the head and index of a thread's object. Returns None if the bytes end within the head. Raises `Corrupt` or
    `NewerFormat`, with the object's name."""
    try:
        parts, _ = thread_parts(data)
    except NewerObject as error:
        raise NewerFormat(f"{name} in {where}", error.version, VERSION) from error
    except BadObject as error:
        raise Corrupt(f"{name} in {where} is damaged: {error}. Restore it from a copy.") from error
    if parts is not None and thread_key(parts.head.thread_id) != name.rpartition("/")[2]:
        raise Corrupt(f"{name} in {where} is the object of another thread. Restore it from a copy.")
    return parts


def _begins(append: _Append) -> bool:
    """Return whether this can be the first append of a thread."""
    return append.at == 0 and len(append.frames) > 0


def _reason(known: _Log | None, append: _Append) -> str:
    """Return why the log cannot take this append, or an empty text if it can."""
    if known is None:
        return "" if _begins(append) else f"there is no such log to go on from frame {append.at}"
    if known.log_id != append.head.log_id:
        return "the thread was deleted and made again; this is another log"
    return "" if known.frames == append.at else f"its log ends at frame {known.frames}, not {append.at}"
