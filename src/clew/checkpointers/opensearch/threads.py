"""Reads and writes the threads of an OpenSearch store. A thread is one document and its packs, which hold its older
frames. A conditional write of the document, which is refused if the document has changed, commits an append.

`packed.log` makes the appends, and describes how the document, the newest frames in it and the packs work together.
Packs have at most 8 MiB: so the document lists a few dozen packs for a log of 100 MB, and grows by a hundred bytes for
every few MiB more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from clew._runtime.aio import together
from clew._runtime.batches import batches
from clew.checkpointers.checks import check_wanted
from clew.checkpointers.heads import Head, thread_key
from clew.checkpointers.opensearch.blobs import Blobs
from clew.checkpointers.opensearch.documents import (
    HEAD,
    LOG,
    State,
    read_bytes,
    read_head,
    read_log,
    thread_document,
)
from clew.checkpointers.opensearch.engine import Answer, Engine
from clew.checkpointers.opensearch.schema import Indices
from clew.checkpointers.packed.log import Append, Log, PackedLogs, Tail
from clew.checkpointers.packed.packs import BadObject, Pack, PackGone, PackTable, make_pack, merged_with, pack_table
from clew.errors import Corrupt

__all__ = ["Threads"]

TAIL = 32 * 2**10
"""The most bytes of frames and refs (digests of blobs) in a thread's own document. Older ones are in packs."""
REWRITTEN = 256 * 2**10
"""The most bytes that appends write to a thread's own document before its frames become a pack, counted since the last
pack. Each append writes the whole document again, with the newest frames. If the pack were made earlier, the request
for it would cost more than it saves."""
LARGEST = 8 * 2**20
"""The most bytes of a pack, which is one document with older frames of a thread. A document is read and written whole,
and the cluster has to hold several in memory."""
AT_ONCE = 4
"""The most requests that read or write packs (older frames of threads) at the same time."""


class Threads:
    """The threads of one namespace, a separate part of an OpenSearch store. Each thread is one document and its packs,
    which are documents with groups of older frames."""

    def __init__(self, engine: Engine, indices: Indices, ns: str, blobs: Blobs, where: str) -> None:
        self._engine = engine
        self._indices = indices
        self._ns = ns
        self._where = where
        self._packs = DocumentPacks(engine, indices, ns, where)
        self.logs = PackedLogs(self, self._packs, blobs.touch, where, largest_tail=TAIL, most_rewritten=REWRITTEN)

    async def head(self, thread_id: str) -> Head | None:
        key = thread_key(thread_id)
        found = await self._engine.get(self._indices.threads, self.document(key), HEAD)
        return None if found is None else read_head(found["_source"], key, self._where)

    async def heads(self, keys: Sequence[str]) -> list[Head]:
        """Return the heads of the threads with these keys (hashes of their ids), in the order of the keys. Threads that
        do not exist are left out."""
        found = await self._engine.get_all(self._indices.threads, [self.document(key) for key in keys], HEAD)
        return [
            read_head(document["_source"], key, self._where)
            for key, document in zip(keys, found, strict=True)
            if document is not None
        ]

    async def delete(self, thread_id: str) -> None:
        """Delete a thread: first its document and its search text, then its packs, which hold its older frames. If
        another process deletes the thread meanwhile and makes it again, the new thread stays. Packs that a crash leaves
        behind are invisible, and a later cleanup deletes them."""
        key = thread_key(thread_id)
        async with self.logs.locks[key]:
            self.logs.forget(key)
            first: Log[State] | Corrupt | None = None
            while True:
                document = await self._engine.get(self._indices.threads, self.document(key), LOG)
                state = (document["_seq_no"], document["_primary_term"]) if document else None
                found: Log[State] | Corrupt | None = None
                if document is not None and state is not None:
                    try:
                        found = read_log(state, document["_source"], key, self._where)
                    except Corrupt as error:
                        found = error  # the document is damaged, so its packs are unknown; a later sweep deletes them
                if isinstance(first, Log) and isinstance(found, Log) and found.log_id != first.log_id:
                    return  # somebody else has deleted the thread and made it again
                first = first or found
                check_wanted()
                if await self._deleted(key, state):
                    break
            if isinstance(found, Log):
                await self.logs.drop(key, found.tail.packs)

    async def _deleted(self, key: str, state: State | None) -> bool:
        """Delete the document of a thread if it is in this state (sequence number and primary term), and the thread's
        search text in any case. `key` is the hash of the thread's id. With None as the state, only the search text is
        deleted. Returns False if the document is in another state; then it stays. Otherwise returns True."""
        actions: list[tuple[str, dict[str, str | int], None]] = [("delete", {"_id": self.text_document(key)}, None)]
        if state is not None:
            condition = {"if_seq_no": state[0], "if_primary_term": state[1]}
            actions.append(("delete", {"_id": self.document(key), **condition}, None))
        items = await self._engine.bulk(self._indices.threads, actions)
        return all(item["status"] != 409 for item in items)

    async def set_text(self, thread_id: str, text: str) -> None:
        """Set the text by which searches find this thread. Replaces a text that was set before. Does not check that the
        thread exists."""
        key = thread_key(thread_id)
        document = {"text_of": self._ns, "key": key, "text": text}
        await self._engine.put(self._indices.threads, self.text_document(key), document)

    def document(self, key: str) -> str:
        return f"{self._ns}.{key}"

    def text_document(self, key: str) -> str:
        return f"{self._ns}.{key}.text"

    async def load(self, key: str) -> Log[State] | None:
        """Read and check the document of a thread. Returns a `Log`: the newest frames, and the list of the packs
        (stored groups of older frames). `key` is the hash of the thread's id. Returns None if the thread does not
        exist. Raises `Corrupt` if the document is damaged."""
        found = await self._engine.get(self._indices.threads, self.document(key), LOG)
        if found is None:
            return None
        state = found["_seq_no"], found["_primary_term"]
        return read_log(state, found["_source"], key, self._where)

    async def commit(self, key: str, when: State | None, append: Append, tail: Tail) -> State | None:
        """Write the document of a thread: the head of `append`, and `tail`, which has the newest frames and the list of
        the packs (stored groups of older frames). `key` is the hash of the thread's id.

        Writes only if the document is still in the state `when` (sequence number and primary term); with None, only if
        there is no document. Returns the document's new state, or None if nothing was written.
        """
        document = thread_document(self._ns, append.head, append.encoded, tail)
        return await self._engine.put(self._indices.threads, self.document(key), document, when=when or "absent")

    async def vacancy(self, key: str) -> State | None:
        """Return None: nothing is kept in place of a deleted thread."""
        return None

    async def mark(self, key: str) -> str:
        """Return an empty text: the queue of the workers is found by a field of the documents, without markers."""
        return ""

    async def unmark(self, key: str, marker: str) -> None:
        """Do nothing: there are no markers."""

    def lost(self, thread_id: str, pack: Pack) -> Corrupt:
        """Return the `Corrupt` error for a thread that lists a pack (a stored group of its older frames) which does not
        exist."""
        name = self._packs.key(thread_key(thread_id), pack.name)
        return Corrupt(
            f"thread {thread_id!r} in {self._where} lacks {pack.frames} of its frames: the document {name} of "
            f"{self._indices.data} was deleted, and not by Clew. Restore it from a snapshot, and let no lifecycle "
            "policy touch Clew's indices."
        )


class DocumentPacks:
    """Reads and writes the packs of one namespace, each in one document. A pack holds older frames of a thread;
    `thread` is always the key of that thread, which is the hash of its id."""

    def __init__(self, engine: Engine, indices: Indices, ns: str, where: str) -> None:
        self._engine = engine
        self._indices = indices
        self._ns = ns
        self._where = where
        self._room = asyncio.Semaphore(AT_ONCE)

    def merged(self, packs: Sequence[Pack], new: int) -> int:
        """Return how many of these packs, counted from the newest, are to be merged with `new` bytes of new frames into
        one pack. A pack holds older frames of a thread; `packs` are sorted from old to new.

        Small packs are merged so that a log has few packs and each byte is written again only a few times. Fewer packs
        are merged, or none, if the merged pack would otherwise have more than 8 MiB (`LARGEST`).
        """
        count = merged_with([pack.size for pack in packs], new)
        while count and new + sum(pack.size for pack in packs[len(packs) - count :]) > LARGEST:
            count -= 1
        return count

    async def write(
        self, thread: str, older: Sequence[Pack], frames: Sequence[bytes], refs: Sequence[str]
    ) -> tuple[Pack, ...]:
        """Write a new pack (a stored group of older frames), or several packs if one would be too large. The new packs
        hold the content of the packs `older`, which they are to replace, followed by these frames and refs (digests of
        blobs). Returns the entries of the new packs for the thread's list of packs. `thread` is the thread's key, the
        hash of its id."""
        whole = await self._whole(thread, older)
        all_frames = [frame for found, _ in whole for frame in found] + list(frames)
        all_refs = list(dict.fromkeys([ref for _, found in whole for ref in found] + list(refs)))
        made: list[tuple[Pack, bytes]] = []
        parts = list(batches(all_frames, size=len, largest=LARGEST)) or [[]]  # a pack can hold refs alone
        for part in parts:
            made.append(make_pack(part, [] if made else all_refs))
        await together([self._put(thread, pack, data) for pack, data in made])
        return tuple(pack for pack, _ in made)

    async def frames(self, thread: str, wanted: Sequence[tuple[Pack, int, int]]) -> list[bytes]:
        """Return frames from packs (stored groups of a thread's older frames), in order. Each item of `wanted` is a
        pack, the number of the first frame wanted, and the number of the frame before which to stop. The first frame of
        a pack has the number 0. `thread` is the thread's key, the hash of its id."""
        whole = await self._whole(thread, [pack for pack, _, _ in wanted])
        return [frame for (frames, _), (_, low, high) in zip(whole, wanted, strict=True) for frame in frames[low:high]]

    async def refs(self, thread: str, packs: Sequence[Pack]) -> set[str]:
        """Return the digests of all blobs that the frames in these packs refer to. Packs hold the older frames of a
        thread. `thread` is the thread's key, the hash of its id."""
        named = [pack for pack in packs if pack.refs]
        documents = await self._get(thread, named, "table")
        tables = [self._table(thread, pack, found) for pack, found in zip(named, documents, strict=True)]
        return {ref for table in tables for ref in table.refs}

    async def delete(self, thread: str, packs: Sequence[Pack]) -> None:
        """Delete these packs, which hold older frames of a thread. Packs that do not exist are ignored. `thread` is the
        thread's key, the hash of its id."""
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
        pages = batches(packs, size=lambda pack: pack.size, largest=LARGEST)
        found = await together([self._get_some(thread, some, fields) for some in pages])
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
