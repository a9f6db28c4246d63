"""The threads of an OpenSearch store: one document each. A conditional write of that document commits an append.

The document holds the head, the newest frames and refs (the tail), and the list of packs with the older ones. What was
last read or written is remembered with its sequence number, so an append is usually a single conditional write. It
writes the whole tail again, at most 32 KiB. When the tail grows beyond that, or the rewritten bytes add up to 256 KiB,
the tail becomes a pack. The pack is written before the thread's document, under a name of its own. Packs of similar
size are merged, up to 8 MiB: so the document lists a few dozen packs for a log of 100 MB, and grows by a hundred bytes
for every few MiB more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from clew._runtime.aio import Locks, together
from clew.checkpointers.heads import Head, thread_key
from clew.checkpointers.opensearch.blobs import Blobs
from clew.checkpointers.opensearch.documents import HEAD, LOG, Log, read_bytes, read_head, read_log, thread_document
from clew.checkpointers.opensearch.engine import Answer, Engine
from clew.checkpointers.opensearch.schema import Indices
from clew.checkpointers.packed.format import BadObject, Pack, PackTable, make_pack, pack_table
from clew.checkpointers.packed.packs import PackGone, merged_with
from clew.errors import Conflict, Corrupt, MissingBlob, Unavailable

__all__ = ["LARGEST", "Packs", "Threads", "fitting", "taken_in"]


log = logging.getLogger("clew.checkpointers")

TAIL = 32 * 2**10
"""The most bytes of frames and refs in a thread's own document."""
REWRITTEN = 256 * 2**10
"""The tail becomes a pack when this many bytes of it have been rewritten. Earlier, the request for the pack would cost more
than it saves."""
REMEMBERED = 32 * 2**20
"""The most bytes of tails that are kept in memory."""
CONTRADICTIONS = 5
"""How often a write may be refused although the document is in the state that the write required."""
UNCOMMITTED = 3600.0
"""Seconds after which an append gives up instead of naming a pack that it has written. Sweeps delete unnamed packs after a
day."""


class _Append(NamedTuple):
    thread_id: str
    frames: Sequence[bytes]
    at: int
    head: Head
    encoded: bytes
    refs: Collection[str]


class Threads:
    """The threads of one namespace of an OpenSearch store."""

    def __init__(self, engine: Engine, indices: Indices, ns: str, blobs: Blobs, where: str) -> None:
        self._engine = engine
        self._indices = indices
        self._ns = ns
        self._where = where
        self._blobs = blobs
        self.packs = Packs(engine, indices, ns, where)
        self._logs: OrderedDict[str, Log] = OrderedDict()
        self._size = 0
        self._locks = Locks()

    async def append(
        self, thread_id: str, frames: Sequence[bytes], at: int, head: Head, encoded: bytes, refs: Collection[str]
    ) -> None:
        """Append as `Checkpointer.append` promises. The remembered state of the log is trusted until it contradicts the
        append or the cluster refuses the write; then the document is read, and decides."""
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
                gone: Pack | None = None
                try:
                    if await self._commit(key, known, append):
                        return
                except PackGone as error:
                    gone = error.pack
                before, known, sure = known, await self._load(key), True
                if (before.state if before else None) == (known.state if known else None):
                    if gone is not None:
                        raise self._gone(thread_id, gone)
                    contradicted += 1
                    await self._contradicted(thread_id, contradicted)

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
        found = await self._engine.get(self._indices.threads, self.document(key), HEAD)
        return None if found is None else read_head(found["_source"], key, self._where)

    async def heads(self, keys: Sequence[str]) -> list[Head]:
        """Return the heads of the threads with these keys, in this order. Threads that do not exist are left out."""
        found = await self._engine.get_all(self._indices.threads, [self.document(key) for key in keys], HEAD)
        return [
            read_head(document["_source"], key, self._where)
            for key, document in zip(keys, found, strict=True)
            if document is not None
        ]

    async def refs(self, thread_id: str) -> set[str]:
        key = thread_key(thread_id)
        found = await self._load(key)
        while found is not None:
            try:
                return {*found.refs, *await self.packs.refs(key, found.packs)}
            except PackGone as error:
                found = await self._changed(thread_id, error.pack)
        return set()

    async def delete(self, thread_id: str) -> None:
        """Delete a thread: first its document and its search text, then its packs. The document is deleted only while it
        belongs to the log that was found: a thread that is made again meanwhile stays. Packs that a crash leaves behind are
        invisible and are swept later."""
        key = thread_key(thread_id)
        async with self._locks[key]:
            self._forget(key)
            first: Log | Corrupt | None = None
            while True:
                document = await self._engine.get(self._indices.threads, self.document(key), LOG)
                state = (document["_seq_no"], document["_primary_term"]) if document else None
                found: Log | Corrupt | None = None
                if document is not None and state is not None:
                    try:
                        found = read_log(state, document["_source"], key, self._where)[1]
                    except Corrupt as error:
                        found = error  # its packs are unknown, and are swept later
                if isinstance(first, Log) and isinstance(found, Log) and found.log_id != first.log_id:
                    return  # deleted by somebody else, and made again
                first = first or found
                if await self._deleted(key, state):
                    break
            if isinstance(found, Log):
                await self._drop(key, found.packs)

    async def _deleted(self, key: str, state: tuple[int, int] | None) -> bool:
        """Delete a thread's document and its search text. Returns False if the document is not in this state any more;
        then it stays."""
        actions: list[tuple[str, dict[str, str | int], None]] = [("delete", {"_id": self.text_document(key)}, None)]
        if state is not None:
            condition = {"if_seq_no": state[0], "if_primary_term": state[1]}
            actions.append(("delete", {"_id": self.document(key), **condition}, None))
        items = await self._engine.bulk(self._indices.threads, actions)
        return all(item["status"] != 409 for item in items)

    async def packs_of(self, key: str) -> set[str]:
        """Return the names of the packs that the document of the thread with this key lists."""
        found = await self._load(key)
        return {pack.name for pack in found.packs} if found else set()

    async def set_text(self, thread_id: str, text: str) -> None:
        """Set the text by which searches find this thread. Replaces a text set before."""
        key = thread_key(thread_id)
        document = {"text_of": self._ns, "key": key, "text": text}
        await self._engine.put(self._indices.threads, self.text_document(key), document)

    def document(self, key: str) -> str:
        return f"{self._ns}.{key}"

    def text_document(self, key: str) -> str:
        return f"{self._ns}.{key}.text"

    async def _commit(self, key: str, known: Log | None, append: _Append) -> bool:
        """Write the thread's document with this append added, on condition that it has not changed since `known`.
        Returns False if it has."""
        packs = known.packs if known else ()
        tail = [*(known.tail if known else ()), *map(bytes, append.frames)]
        refs = list(dict.fromkeys([*(known.refs if known else ()), *append.refs]))
        inline = sum(map(len, tail)) + 32 * len(refs)
        rewritten = (known.rewritten if known else 0) + inline
        merged: tuple[Pack, ...] = ()
        new: tuple[Pack, ...] = ()
        began = time.time()
        if inline > TAIL or (rewritten > REWRITTEN and (tail or refs)):
            kept = len(packs) - taken_in(packs, inline)
            packs, merged = packs[:kept], packs[kept:]
            new = await self.packs.write(key, merged, tail, refs)
            packs, tail, refs, rewritten = (*packs, *new), [], [], 0
        if abs(time.time() - began) > UNCOMMITTED:
            raise Unavailable(f"{self._where}: this append took more than an hour. Make the same call again.")
        document = thread_document(self._ns, append.head, append.encoded, packs, tail, refs, rewritten)
        when = known.state if known else "absent"
        state = await self._engine.put(self._indices.threads, self.document(key), document, when=when)
        if state is None:
            await self._drop_unless_named(key, new)
            return False
        self._remember(key, Log(state, append.head.log_id, append.head.frames, packs, tail, refs, rewritten))
        await self._drop(key, merged)
        return True

    async def _drop_unless_named(self, key: str, new: Sequence[Pack]) -> None:
        """After a refused write, delete the packs that were written for it, unless the thread's document lists them. It does
        if our own write had been carried out although no answer came."""
        if new and not {pack.name for pack in new} & await self.packs_of(key):
            await self._drop(key, new)

    async def _drop(self, key: str, packs: Sequence[Pack]) -> None:
        """Delete packs that the thread does not list any more. A failure does not fail the append: the packs are swept
        later."""
        try:
            await self.packs.delete(key, packs)
        except Unavailable as error:
            log.debug("%s: unused packs of thread %s are not deleted for now: %s", self._where, key, error)

    async def _holds(self, key: str, found: Log, append: _Append) -> bool:
        """Return whether the log already holds exactly the frames of this append, at the same position."""
        end = append.at + len(append.frames)
        if not append.frames or found.log_id != append.head.log_id or end > found.frames:
            return False
        try:
            return await self._frames(key, found, append.at, end) == list(map(bytes, append.frames))
        except PackGone as error:
            changed = await self._changed(append.thread_id, error.pack)
            return changed is not None and await self._holds(key, changed, append)

    async def _frames(self, key: str, found: Log, start: int, stop: int) -> list[bytes]:
        """Read the frames from `start` up to `stop`, as far as they exist."""
        wanted: list[tuple[Pack, int, int]] = []
        first = 0
        for pack in found.packs:
            low, high = max(start, first) - first, min(stop, first + pack.frames) - first
            if low < high:
                wanted.append((pack, low, high))
            first += pack.frames
        packed = await self.packs.frames(key, wanted)
        return packed + found.tail[max(0, start - first) : max(0, stop - first)]

    async def _changed(self, thread_id: str, pack: Pack) -> Log | None:
        """Load a thread again after one of its packs was missing. Raises `Corrupt` if it still lists that pack."""
        now = await self._load(thread_key(thread_id))
        if now is not None and pack in now.packs:
            raise self._gone(thread_id, pack)
        return now

    def _gone(self, thread_id: str, pack: Pack) -> Corrupt:
        name = self.packs.key(thread_key(thread_id), pack.name)
        return Corrupt(
            f"thread {thread_id!r} in {self._where} lacks {pack.frames} of its frames: the document {name} of "
            f"{self._indices.data} is gone, removed behind Clew's back. Restore it from a snapshot, and let no lifecycle "
            "policy touch Clew's indices."
        )

    async def _contradicted(self, thread_id: str, times: int) -> None:
        if times > CONTRADICTIONS:
            raise Unavailable(
                f"thread {thread_id!r}: {self._where} refuses to replace its document, yet shows it unchanged. "
                "Make the same call again."
            )
        await asyncio.sleep(0.05 * times)

    async def _load(self, key: str) -> Log | None:
        """Read, check and remember the document of the thread with this key. Returns None if the thread does not exist."""
        found = await self._engine.get(self._indices.threads, self.document(key), LOG)
        if found is None:
            self._forget(key)
            return None
        state = found["_seq_no"], found["_primary_term"]
        _, loaded = read_log(state, found["_source"], key, self._where)
        self._remember(key, loaded)
        return loaded

    def _remember(self, key: str, found: Log) -> None:
        self._forget(key)
        self._logs[key] = found
        self._size += found.size
        while self._size > REMEMBERED and len(self._logs) > 1:
            self._forget(next(iter(self._logs)))

    def _forget(self, key: str) -> None:
        if (found := self._logs.pop(key, None)) is not None:
            self._size -= found.size


def _begins(append: _Append) -> bool:
    """Return whether this can be the first append of a thread."""
    return append.at == 0 and len(append.frames) > 0


def _reason(known: Log | None, append: _Append) -> str:
    """Return why the log cannot take this append, or an empty text if it can."""
    if known is None:
        return "" if _begins(append) else f"there is no such log to go on from frame {append.at}"
    if known.log_id != append.head.log_id:
        return "the thread was deleted and made again; this is another log"
    return "" if known.frames == append.at else f"its log ends at frame {known.frames}, not {append.at}"


LARGEST = 8 * 2**20
"""The most bytes of a pack. A document is read and written whole, and the cluster has to hold several in memory."""
AT_ONCE = 4
"""The most requests for packs at the same time."""


def taken_in(packs: Sequence[Pack], new: int) -> int:
    """Return how many of the newest packs are merged into a new pack of `new` bytes: what `merged_with` says, but fewer
    if the result would be larger than `LARGEST`."""
    count = merged_with([pack.size for pack in packs], new)
    while count and new + sum(pack.size for pack in packs[len(packs) - count :]) > LARGEST:
        count -= 1
    return count


def fitting(frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Split frames into parts of at most `LARGEST` bytes, one for each pack. Yields one empty part for no frames,
    because a pack can hold refs alone."""
    part: list[bytes] = []
    size = 0
    for frame in frames:
        if part and size + len(frame) > LARGEST:
            yield part
            part, size = [], 0
        part.append(frame)
        size += len(frame)
    yield part


class Packs:
    """Reads and writes the packs of one namespace. `thread` is always the key of the thread that a pack belongs to."""

    def __init__(self, engine: Engine, indices: Indices, ns: str, where: str) -> None:
        self._engine = engine
        self._indices = indices
        self._ns = ns
        self._where = where
        self._room = asyncio.Semaphore(AT_ONCE)

    async def write(
        self, thread: str, older: Sequence[Pack], frames: Sequence[bytes], refs: Sequence[str]
    ) -> tuple[Pack, ...]:
        """Write the content of the packs `older`, followed by these frames and refs, as new packs. It is one pack
        unless that would be too large."""
        whole = await self._whole(thread, older)
        all_frames = [frame for found, _ in whole for frame in found] + list(frames)
        all_refs = list(dict.fromkeys([ref for _, found in whole for ref in found] + list(refs)))
        made: list[tuple[Pack, bytes]] = []
        for part in fitting(all_frames):
            made.append(make_pack(part, [] if made else all_refs))
        await together([self._put(thread, pack, data) for pack, data in made])
        return tuple(pack for pack, _ in made)

    async def frames(self, thread: str, wanted: Sequence[tuple[Pack, int, int]]) -> list[bytes]:
        """Read frames of packs. Each item of `wanted` is a pack and the range of frame numbers within it."""
        whole = await self._whole(thread, [pack for pack, _, _ in wanted])
        return [frame for (frames, _), (_, low, high) in zip(whole, wanted, strict=True) for frame in frames[low:high]]

    async def refs(self, thread: str, packs: Iterable[Pack]) -> set[str]:
        named = [pack for pack in packs if pack.refs]
        documents = await self._get(thread, named, "table")
        tables = [self._table(thread, pack, found) for pack, found in zip(named, documents, strict=True)]
        return {ref for table in tables for ref in table.refs}

    async def delete(self, thread: str, packs: Iterable[Pack]) -> None:
        await self._engine.bulk(
            self._indices.data, [("delete", {"_id": self.key(thread, pack.name)}, None) for pack in packs]
        )

    def key(self, thread: str, name: str) -> str:
        return f"{self._ns}.{thread}.{name}"

    async def _put(self, thread: str, pack: Pack, data: bytes) -> None:
        document: dict[str, Any] = {
            "ns": self._ns,
            "kind": "pack",
            "owner": thread,
            "name": pack.name,
            "piece": 0,
            "made": self._indices.clock.now(),
            "table": data[: pack.table],
            "bytes": memoryview(data)[pack.table :],
        }
        async with self._room:
            await self._engine.put(self._indices.data, self.key(thread, pack.name), document)

    async def _whole(self, thread: str, packs: Sequence[Pack]) -> list[tuple[list[bytes], list[str]]]:
        documents = await self._get(thread, packs, "table,bytes")
        found = []
        for pack, document in zip(packs, documents, strict=True):
            table = self._table(thread, pack, document)
            try:
                found.append((table.frames(read_bytes(document["_source"], "bytes"), 0, pack.frames), table.refs))
            except (BadObject, ValueError) as error:
                raise self._damaged(thread, pack, error) from error
        return found

    async def _get(self, thread: str, packs: Sequence[Pack], fields: str) -> list[Answer]:
        found = await together([self._get_some(thread, some, fields) for some in _pages(packs)])
        return [document for documents in found for document in documents]

    async def _get_some(self, thread: str, packs: Sequence[Pack], fields: str) -> list[Answer]:
        keys = [self.key(thread, pack.name) for pack in packs]
        async with self._room:
            documents = await self._engine.get_all(self._indices.data, keys, fields)
        found = []
        for pack, document in zip(packs, documents, strict=True):
            if document is None:
                raise PackGone(pack)
            found.append(document)
        return found

    def _table(self, thread: str, pack: Pack, document: Answer) -> PackTable:
        try:
            return pack_table(pack, read_bytes(document["_source"], "table"))
        except (BadObject, ValueError) as error:
            raise self._damaged(thread, pack, error) from error

    def _damaged(self, thread: str, pack: Pack, error: Exception) -> Corrupt:
        return Corrupt(
            f"the document {self.key(thread, pack.name)} of {self._indices.data} in {self._where} is damaged: {error}. "
            "Restore it from a copy."
        )


def _pages(packs: Sequence[Pack]) -> Iterator[list[Pack]]:
    """Group packs for requests: each group has at most `LARGEST` bytes, or is one pack."""
    page: list[Pack] = []
    size = 0
    for pack in packs:
        if page and size + pack.size > LARGEST:
            yield page
            page, size = [], 0
        page.append(pack)
        size += pack.size
    if page:
        yield page
