"""Reads and writes the threads of a bucket. A thread is one object and its packs, which hold its older frames. A
conditional put of the object (a write that is refused if the object has changed) commits an append.

Buckets have no conditional delete, and a request may be carried out long after its sender gave it up. So deleting a
thread is a conditional put too: it replaces the object by a dead record, a few bytes that say that the thread does not
exist. If a thread with the same id is made again, its first append replaces the dead record. Otherwise a later cleanup
deletes the dead record.

`packed.log` makes the appends, and describes how the object, the newest frames in it and the packs work together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from clew._runtime.aio import together
from clew.checkpointers.checks import check_wanted
from clew.checkpointers.heads import Head, thread_key
from clew.checkpointers.objects.blobs import ObjectBlobs
from clew.checkpointers.objects.bucket import PatientBucket, Refused, Tag
from clew.checkpointers.objects.format import (
    DEAD_SIZE,
    VERSION,
    NewerObject,
    ThreadParts,
    dead_record,
    is_dead,
    thread_object,
    thread_parts,
    thread_tail,
)
from clew.checkpointers.objects.queue import ObjectQueue
from clew.checkpointers.packed.log import Append, Log, PackedLogs, Tail
from clew.checkpointers.packed.packs import (
    BadObject,
    Index,
    Pack,
    PackGone,
    PackTable,
    make_pack,
    merged_with,
    pack_table,
)
from clew.errors import Corrupt, NewerFormat

__all__ = ["HEAD_PART", "ObjectThreads", "is_deleted", "read_parts"]

TAIL = 256 * 2**10
"""The most bytes of frames and refs (digests of blobs) in a thread's own object. Older ones are in packs."""
REWRITTEN = 2**20
"""The most bytes that appends write to a thread's own object before its frames become a pack, counted since the last
pack. Each append writes the whole object again, with the newest frames. Writing this many bytes takes about as long as
one more request: a pack made earlier would cost more than it saves, one made later would save less than it could."""
HEAD_PART = 4096
"""Bytes of a thread's object to read when only the head is wanted. They nearly always hold the whole head."""
WHOLE = 2**20
"""Packs up to this many bytes are always read whole, even if only some of their frames are wanted. A pack holds older
frames of a thread."""


class ObjectThreads:
    """The threads of one namespace, a separate part of a bucket. Each thread is one object and its packs, which are
    objects with groups of older frames."""

    def __init__(self, bucket: PatientBucket, root: str, blobs: ObjectBlobs, where: str) -> None:
        self._bucket = bucket
        self._blobs = blobs
        self._where = where
        self.folder = f"{root}/threads"
        self.packs = ObjectPacks(bucket, f"{root}/packs", where)
        self.queue = ObjectQueue(bucket, root, blobs, where)
        self.logs = PackedLogs(self, self.packs, blobs.touch, where, largest_tail=TAIL, most_rewritten=REWRITTEN)

    async def head(self, thread_id: str) -> Head | None:
        key = thread_key(thread_id)
        name = f"{self.folder}/{key}"
        for size in (HEAD_PART, None):
            found = await self._bucket.get(name, 0, size)
            if found is None or is_deleted(found.data, name, self._where):
                return None
            if parts := read_parts(found.data, name, self._where):
                return parts.head
        raise Corrupt(f"{name} in {self._where} is cut short. Restore it from a copy.")

    async def delete(self, thread_id: str) -> None:
        """Delete a thread: first replace its object by a dead record, a few bytes that say that the thread does not
        exist; then delete its packs, which hold its older frames, and its marker in the queue of the workers. What a
        crash leaves behind of these is invisible, and a later cleanup deletes it.

        If the thread changes meanwhile, this tries again. But if somebody else has deleted the thread and made it again
        meanwhile, the new thread stays.
        """
        key = thread_key(thread_id)
        name = f"{self.folder}/{key}"
        log_id: str | None = None
        packs: tuple[Pack, ...] = ()
        marker = ""
        async with self.logs.locks[key]:
            self.logs.forget(key)
            while (found := await self._bucket.get(name)) is not None:
                try:
                    if is_deleted(found.data, name, self._where):
                        break
                    parts = read_parts(found.data, name, self._where)
                except Corrupt:
                    parts = None  # the object is damaged, so its packs are unknown; a later sweep deletes them
                if parts is not None:
                    if log_id not in (None, parts.head.log_id):
                        break
                    log_id, packs = parts.head.log_id, parts.contents.packs if parts.contents else ()
                    marker = parts.contents.marker if parts.contents else ""
                check_wanted()
                try:
                    await self._bucket.put(name, dead_record(0), found.tag)
                    break
                except Refused:
                    continue
            await self.packs.delete(key, packs)
            if marker:
                await self.queue.remove(key, marker)

    async def load(self, key: str) -> Log[Tag] | None:
        """Read and check the object of a thread. Returns a `Log`: the newest frames, and the list of the packs (stored
        groups of older frames). `key` is the hash of the thread's id. Returns None if the thread does not exist. Raises
        `Corrupt` if the object is damaged."""
        name = f"{self.folder}/{key}"
        found = await self._bucket.get(name)
        if found is None or is_deleted(found.data, name, self._where):
            return None
        parts = read_parts(found.data, name, self._where)
        try:
            if parts is None or parts.contents is None:
                raise BadObject("it is cut short")
            tail, refs = thread_tail(found.data, parts)
            _check_count(parts.head, parts.contents)
        except BadObject as error:
            raise Corrupt(f"{name} in {self._where} is damaged: {error}. Restore it from a copy.") from error
        head, index = parts.head, parts.contents
        return Log(found.tag, head.log_id, head.frames, Tail(index.packs, tail, refs, index.rewritten, index.marker))

    async def commit(self, key: str, when: Tag | None, append: Append, tail: Tail) -> Tag | None:
        """Write the object of a thread: the head of `append`, and `tail`, which has the newest frames and the list of
        the packs (stored groups of older frames). `key` is the hash of the thread's id.

        Writes only if the object still has the tag `when`; with None, only if the thread does not exist. A tag
        identifies one state of an object. Returns the object's new tag, or None if nothing was written.
        """
        data = thread_object(append.encoded, tail.packs, tail.frames, tail.refs, tail.rewritten, tail.marker)
        name = f"{self.folder}/{key}"
        try:
            return await self._bucket.put(name, data, when or "absent")
        except Refused:
            if when is not None or tail.packs or tail.marker or (dead := await self.vacancy(key)) is None:
                return None
        try:
            return await self._bucket.put(name, data, dead)
        except Refused:
            return None

    async def vacancy(self, key: str) -> Tag | None:
        """Return the tag of the dead record, the object that stands for a deleted thread; None if there is none. `key`
        is the hash of the thread's id. Waits while a cleanup is deleting the dead record."""
        name = f"{self.folder}/{key}"
        while True:
            found = await self._bucket.get(name, 0, DEAD_SIZE)
            if found is None or not is_deleted(found.data, name, self._where):
                return None
            if not self._blobs.is_owned(found.data):
                return found.tag
            await asyncio.sleep(0.1)

    async def mark(self, key: str) -> str:
        """Write a new marker by which the queue of the workers finds the thread with this key (the hash of its id), and
        return its name."""
        return await self.queue.add(key)

    async def unmark(self, key: str, marker: str) -> None:
        """Delete a marker that no thread's object names any more. If the bucket cannot be reached, the marker stays, and
        a later listing deletes it."""
        await self.queue.remove(key, marker)

    def lost(self, thread_id: str, pack: Pack) -> Corrupt:
        """Return the `Corrupt` error for a thread that lists a pack (a stored group of its older frames) which does not
        exist."""
        return Corrupt(
            f"thread {thread_id!r} in {self._where} lacks the pack {self.packs.key(thread_key(thread_id), pack)} with "
            f"{pack.frames} of its frames. It was deleted behind Clew's back, most likely by a lifecycle rule of the "
            "bucket. Take this prefix out of all rules that expire objects, and restore the pack from a copy or a version."
        )


class ObjectPacks:
    """Reads and writes the packs of one namespace of a bucket. A pack holds older frames of a thread; `thread` is
    always the key of that thread, which is the hash of its id."""

    def __init__(self, bucket: PatientBucket, folder: str, where: str) -> None:
        self._bucket = bucket
        self.folder = folder
        self._where = where

    def key(self, thread: str, pack: Pack) -> str:
        return f"{self.folder}/{thread}/{pack.name}"

    def merged(self, packs: Sequence[Pack], new: int) -> int:
        """Return how many of these packs, counted from the newest, are to be merged with `new` bytes of new frames into
        one pack. A pack holds older frames of a thread; `packs` are sorted from old to new.

        Small packs are merged so that a log has few packs and each byte is written again only a few times. Packs are
        not merged if the merged pack would have more than 64 MiB.
        """
        return merged_with([pack.size for pack in packs], new)

    async def write(
        self, thread: str, older: Sequence[Pack], frames: Sequence[bytes], refs: Sequence[str]
    ) -> tuple[Pack]:
        """Write a new pack (a stored group of older frames). It holds the content of the packs `older`, which it is to
        replace, followed by these frames and refs (digests of blobs). Returns the entry of the new pack for the
        thread's list of packs. `thread` is the thread's key, the hash of its id."""
        whole = await together([self._whole(thread, pack) for pack in older])
        all_frames = [frame for found, _ in whole for frame in found] + list(frames)
        all_refs = dict.fromkeys([ref for _, found in whole for ref in found] + list(refs))
        pack, data = make_pack(all_frames, list(all_refs))
        await self._bucket.put(self.key(thread, pack), data)
        return (pack,)

    async def frames(self, thread: str, wanted: Sequence[tuple[Pack, int, int]]) -> list[bytes]:
        """Return frames from packs (stored groups of a thread's older frames), in order. Each item of `wanted` is a
        pack, the number of the first frame wanted, and the number of the frame before which to stop. The first frame of
        a pack has the number 0. `thread` is the thread's key, the hash of its id."""
        found = await together([self._frames(thread, *part) for part in wanted])
        return [frame for frames in found for frame in frames]

    async def refs(self, thread: str, packs: Sequence[Pack]) -> set[str]:
        """Return the digests of all blobs that the frames in these packs refer to. Packs hold the older frames of a
        thread. `thread` is the thread's key, the hash of its id."""
        tables = await together([self._table(thread, pack) for pack in packs if pack.refs])
        return {ref for table in tables for ref in table.refs}

    async def delete(self, thread: str, packs: Sequence[Pack]) -> None:
        """Delete these packs, which hold older frames of a thread. Packs that do not exist are ignored. `thread` is the
        thread's key, the hash of its id."""
        await self._bucket.delete([self.key(thread, pack) for pack in packs])

    async def _frames(self, thread: str, pack: Pack, start: int, stop: int) -> list[bytes]:
        if pack.size <= WHOLE or 2 * (stop - start) >= pack.frames:
            frames, _ = await self._whole(thread, pack)
            return frames[start:stop]
        table = await self._table(thread, pack)
        before, size = sum(table.sizes[:start]), sum(table.sizes[start:stop])
        data = await self._get(thread, pack, pack.table + before, size) if size else b""
        try:
            return table.frames(data, start, stop)
        except BadObject as error:
            raise self._corrupt(thread, pack, error) from error

    async def _whole(self, thread: str, pack: Pack) -> tuple[list[bytes], list[str]]:
        data = await self._get(thread, pack)
        try:
            table = pack_table(pack, data)
            return table.frames(memoryview(data)[pack.table :], 0, pack.frames), table.refs
        except BadObject as error:
            raise self._corrupt(thread, pack, error) from error

    async def _table(self, thread: str, pack: Pack) -> PackTable:
        data = await self._get(thread, pack, 0, pack.table)
        try:
            return pack_table(pack, data)
        except BadObject as error:
            raise self._corrupt(thread, pack, error) from error

    async def _get(self, thread: str, pack: Pack, start: int = 0, size: int | None = None) -> bytes:
        found = await self._bucket.get(self.key(thread, pack), start, size)
        if found is None:
            raise PackGone(pack)
        return found.data

    def _corrupt(self, thread: str, pack: Pack, error: BadObject) -> Corrupt:
        return Corrupt(f"{self.key(thread, pack)} in {self._where} is damaged: {error}. Restore it from a copy.")


def is_deleted(data: bytes, name: str, where: str) -> bool:
    """Return whether `data`, the object of a thread in a bucket, says that the thread was deleted. `data` may be only
    the start of the object. Raises `Corrupt` if the object is damaged, and `NewerFormat` if it has a later format
    version. `name` is the object's name, and `where` names the bucket in errors."""
    with _explained(name, where):
        return is_dead(data)


def read_parts(data: bytes, name: str, where: str) -> ThreadParts | None:
    """Decode the first parts of a thread's object: the head, and after it the index, which lists the thread's packs
    (stored groups of older frames). `data` is the object or only the start of it. If `data` ends within the head,
    returns None; if it ends within the index, the index in the result is None. Raises `Corrupt` if the object is
    damaged or of another thread, and `NewerFormat` if it has a later format version. `name` is the object's name, and
    `where` names the bucket in errors."""
    with _explained(name, where):
        parts, _ = thread_parts(data)
    if parts is not None and thread_key(parts.head.thread_id) != name.rpartition("/")[2]:
        raise Corrupt(f"{name} in {where} is the object of another thread. Restore it from a copy.")
    return parts


@contextmanager
def _explained(name: str, where: str) -> Iterator[None]:
    """Turn errors about the format of an object inside the `with` block into errors for the user: `BadObject` into
    `Corrupt`, and `NewerObject` into `NewerFormat`. `name` and `where` are the object and the bucket that these errors
    name."""
    try:
        yield
    except NewerObject as error:
        raise NewerFormat(f"{name} in {where}", error.version, VERSION) from error
    except BadObject as error:
        raise Corrupt(f"{name} in {where} is damaged: {error}. Restore it from a copy.") from error


def _check_count(head: Head, index: Index) -> None:
    if sum(pack.frames for pack in index.packs) + len(index.sizes) != head.frames:
        raise BadObject("its head and its index differ in the number of frames")
