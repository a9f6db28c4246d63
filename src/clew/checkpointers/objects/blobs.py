"""The blobs of a bucket. Each blob has one small object, its record, which says that it exists and when it was touched.
To touch a blob is to set its time of last use to now.

Buckets have no conditional delete, so deleting a blob takes two steps. First its record is replaced by a dead record,
which says that the blob is deleted, with a conditional put that fails if the blob was touched since. From then on the
blob is absent for everyone. Then the process that wrote the dead record deletes it. If it cannot do so within 20
seconds, it leaves the dead record to a later cleanup. For a minute nobody else may replace or delete a dead record, so
a process that puts the same blob meanwhile waits.

The bytes of a large blob are in an object of their own, under a name that no other put ever uses, so deleting them
never hits the bytes of a later put.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from clew._runtime.aio import Locks, together
from clew._runtime.batches import batches
from clew.checkpointers.checks import check_stored_blob
from clew.checkpointers.heads import micros
from clew.checkpointers.objects.bucket import Found, Listed, PatientBucket, Refused, Tag
from clew.checkpointers.objects.format import (
    BLOB_HEADER,
    DEAD_SIZE,
    VERSION,
    Dead,
    NewerObject,
    Record,
    dead_record,
    is_dead,
    read_record,
    record,
)
from clew.checkpointers.packed.clock import Clock, stopwatch
from clew.checkpointers.packed.packs import BadObject, unique_name
from clew.errors import Corrupt, NewerFormat, Unavailable

__all__ = ["ObjectBlobs"]

INLINE = 16 * 2**10
"""The largest blob, in bytes, that is stored inside its record, the small object that each blob has. Such a blob takes
one request to put it and one to get it, but is written again whenever its time of last use is set."""
OWNED = 60_000_000
"""Microseconds for which a dead record belongs to the process that wrote it: others leave it alone. A dead record says
that a blob is being deleted."""
IN_TIME = 20.0
"""Seconds within which a process that owns dead records (which say that a blob is being deleted) must send the requests
that delete them. A request ends after 10 s without an answer, so all have ended long before the minute for which other
processes leave these records alone. The rest of that minute allows for a bucket that carries out a request up to 20 s
after its caller gave up, and for clocks that differ by a few seconds."""
UNCERTAIN = 4_000_000
"""The most microseconds by which two times of one blob differ: the time of last use that is written in the blob's
record (a small object), and the time at which the store says, by its own clock, that this record was last changed."""
UNNAMED = 3600.0
"""Seconds after which a put of a large blob raises `Unavailable` instead of writing the record that names the object
with the blob's bytes. After a day, a cleanup deletes such objects that no record names."""
BATCH = 64
"""The most blobs that are put or deleted at the same time."""
REMEMBERED = 4 * 2**20
"""The most bytes of blobs' records that are kept in memory."""


class ObjectBlobs:
    """The blobs of one namespace (a separate part) of a bucket. Each blob has a record, a small object that says when
    the blob was last used. Records are remembered, each with the tag that identifies its state. So to set the time of
    last use takes only one request, a put on condition that the record still has this tag."""

    def __init__(self, bucket: PatientBucket, root: str, where: str) -> None:
        self._bucket = bucket
        self._where = where
        self.folder = f"{root}/blobs"
        self.data_folder = f"{root}/data"
        self.clock = Clock()
        self._records: OrderedDict[str, tuple[Tag, Record]] = OrderedDict()
        self._size = 0
        self._locks = Locks()

    async def put(self, blobs: Mapping[str, bytes]) -> None:
        for batch in batches(blobs.items(), BATCH):
            await together([self._put(digest, bytes(data)) for digest, data in batch])

    async def get(self, digests: Iterable[str]) -> dict[str, bytes]:
        wanted = list(dict.fromkeys(digests))
        found = await together([self._get(digest) for digest in wanted])
        return {digest: data for digest, data in zip(wanted, found, strict=True) if data is not None}

    async def touch(self, digests: Iterable[str]) -> set[str]:
        """Touch these blobs: set their time of last use to now. Returns the digests of blobs that do not exist."""
        wanted = list(dict.fromkeys(digests))
        there = await together([self._ask(digest) for digest in wanted])
        return {digest for digest, is_there in zip(wanted, there, strict=True) if not is_there}

    async def untouched(self, grace: timedelta) -> AsyncIterator[str]:
        """Yield the digests of blobs whose time of last use is at least `grace` ago.

        A listing of the bucket tells when each blob's record, the small object with its time of last use, was last
        changed. The record itself is read only where the time in the listing is too coarse to decide.
        """
        before = self.clock.before(grace)
        async for chunk in self._bucket.list(self.folder):
            old = [listed for listed in chunk if listed.size != DEAD_SIZE and micros(listed.modified) <= before]
            sure = await together([self._is_untouched(listed, before) for listed in old])
            for listed, is_old in zip(old, sure, strict=True):
                if is_old:
                    yield _digest(listed.key)

    async def delete(self, digests: Collection[str], grace: timedelta) -> None:
        """Delete these blobs, except those whose time of last use is less than `grace` ago."""
        for batch in batches(dict.fromkeys(digests), BATCH):
            elapsed = stopwatch()
            before = self.clock.before(grace)
            names = await together([self._doom(digest, before) for digest in batch])
            doomed = [(digest, name) for digest, name in zip(batch, names, strict=True) if name is not None]
            await self._finish([self._key(digest) for digest, _ in doomed], elapsed)
            await self._bucket.delete([self._data_key(digest, name) for digest, name in doomed if name])

    async def finish_dead(self, keys: Sequence[str]) -> None:
        """Delete the objects with these keys, which are dead records: they stand in the place of deleted blobs and
        threads. A record that a process began to delete less than a minute ago is left alone: that process may still be
        at work."""
        for batch in batches(keys, BATCH):
            elapsed = stopwatch()
            taken = await together([self._take_over(key) for key in batch])
            await self._finish([key for key, is_taken in zip(batch, taken, strict=True) if is_taken], elapsed)

    def is_owned(self, data: bytes) -> bool:
        """Return whether `data` is a dead record (the object in place of a deleted blob or thread) that a process may
        still be deleting. For a minute after that process has begun, nobody else may replace or delete this object."""
        state = read_record(data)
        return isinstance(state, Dead) and self.clock.now() < state.since + OWNED

    async def names(self, digest: str, name: str) -> bool:
        """Return whether this blob exists and its bytes are in the object with this name. Returns False if they are in
        the blob's record, the small object that each blob has."""
        found = await self._bucket.get(self._key(digest), 0, BLOB_HEADER)
        state = None if found is None else self._read(digest, found)
        return isinstance(state, Record) and state.name == name

    async def _put(self, digest: str, data: bytes) -> None:
        asked = self.clock.now()
        async with self._locks[digest]:
            if (len(data) > INLINE or digest in self._records) and await self._touch(digest, asked, check_data=True):
                return
            name = ""
            began = time.time()
            if len(data) > INLINE:
                name = unique_name()
                await self._bucket.put(self._data_key(digest, name), data)
            if not await self._settle(digest, data, name, began):
                await self._bucket.delete([self._data_key(digest, name)] if name else [])

    async def _ask(self, digest: str) -> bool:
        asked = self.clock.now()
        async with self._locks[digest]:
            return await self._touch(digest, asked)

    async def _settle(self, digest: str, data: bytes, name: str, began: float) -> bool:
        """Write the record of a blob that is being put, the small object that each blob has. The record holds `data`,
        the blob's bytes, or `name`, the name of the object that holds them. Returns True if it was written. Returns
        False if the blob exists already; then its time of last use is set to now.

        Waits while another process is deleting the blob. Replaces a damaged record. `began` is when the put began, in
        seconds since 1970; if that is more than an hour ago, this raises `Unavailable`.
        """
        when: Tag | None = None
        while True:
            if abs(time.time() - began) > UNNAMED:
                raise Unavailable(f"{self._where}: this put took more than an hour. Make the same call again.")
            mine = Record(self.clock.now(), name, b"" if name else data)
            try:
                tag = await self._bucket.put(self._key(digest), record(*_fields(mine)), when or "absent")
            except Refused:
                found = await self._bucket.get(self._key(digest))
            else:
                self._remember(digest, tag, mine)
                return True
            when = None
            if found is None:
                continue
            try:
                state = read_record(found.data)
            except BadObject:
                when = found.tag  # the record is damaged, so the new one replaces it
                continue
            except NewerObject as error:
                raise self._newer(digest, error) from error
            if isinstance(state, Dead):
                if self.is_owned(found.data):
                    await asyncio.sleep(0.1)
                else:
                    when = found.tag
                continue
            self._remember(digest, found.tag, state)
            if name and state.name == name:
                return True
            if await self._touch(digest, self.clock.now(), check_data=bool(name)):
                return False
            when = found.tag

    async def _get(self, digest: str) -> bytes | None:
        tag: Tag | None = None
        while (found := await self._bucket.get(self._key(digest))) is not None:
            state = self._read(digest, found)
            if isinstance(state, Dead):
                return None
            if not state.name:
                check_stored_blob(digest, state.data, f"{self._key(digest)} in {self._where}")
                return state.data
            held = await self._bucket.get(self._data_key(digest, state.name))
            if held is not None:
                check_stored_blob(digest, held.data, f"{self._data_key(digest, state.name)} in {self._where}")
                return held.data
            if found.tag == tag:
                raise Corrupt(
                    f"blob {digest} in {self._where}: the object {self._data_key(digest, state.name)} with its bytes was "
                    "deleted behind Clew's back, most likely by a lifecycle rule of the bucket. Take this prefix out of all "
                    "rules that expire objects, and put the blob again or restore the object from a copy."
                )
            tag = found.tag
        return None

    async def _touch(self, digest: str, asked: int, *, check_data: bool = False) -> bool:
        """Set a blob's time of last use to now, unless that time is `asked` or later. `asked` is when the store was
        called, in microseconds since 1970.

        Returns whether the blob exists. With `check_data`, a large blob whose bytes are gone counts as absent, so that
        putting it again repairs it.
        """
        known = self._records.get(digest)
        while True:
            if known is None:
                found = await self._bucket.get(self._key(digest))
                state = None if found is None else self._read(digest, found)
                if found is None or not isinstance(state, Record):
                    return False
                known = found.tag, state
            tag, state = known
            if check_data and state.name and await self._bucket.get(self._data_key(digest, state.name), 0, 1) is None:
                return False
            if state.touched >= asked:
                return True
            touched = state._replace(touched=self.clock.now())
            try:
                tag = await self._bucket.put(self._key(digest), record(*_fields(touched)), tag)
            except Refused:
                self._forget(digest)
                known = None
            else:
                self._remember(digest, tag, touched)
                return True

    async def _is_untouched(self, listed: Listed, before: int) -> bool:
        if micros(listed.modified) + UNCERTAIN <= before:
            return True
        found = await self._bucket.get(listed.key, 0, BLOB_HEADER)
        state = None if found is None else self._read(_digest(listed.key), found)
        return isinstance(state, Record) and state.touched <= before

    async def _doom(self, digest: str, before: int) -> str | None:
        """Mark a blob as deleted, unless its time of last use is later than `before`, in microseconds since 1970:
        replace its record (the small object that each blob has) by a dead record, a few bytes that say that the blob is
        deleted. The caller has to delete the dead record. Returns the name of the object with the blob's bytes, which
        the caller has to delete too; it is empty if they were in the record. Returns None if the blob stays or does not
        exist."""
        found = await self._bucket.get(self._key(digest), 0, BLOB_HEADER)
        state = None if found is None else self._read(digest, found)
        if found is None or not isinstance(state, Record) or max(state.touched, micros(found.modified)) > before:
            return None
        try:
            await self._bucket.put(self._key(digest), dead_record(self.clock.now()), found.tag)
        except Refused:
            return None
        self._forget(digest)
        return state.name

    async def _take_over(self, key: str) -> bool:
        """Become the owner of a dead record (the object in place of a deleted blob or thread), so that this process may
        delete it. `key` is the name of the object. A process that begins to delete a dead record owns it for a minute.
        Returns True if this process is the owner now. Returns False if another process owns the record, or if there is
        none."""
        found = await self._bucket.get(key)
        try:
            if found is None or not is_dead(found.data) or self.is_owned(found.data):
                return False
        except (BadObject, NewerObject):
            return False
        try:
            await self._bucket.put(key, dead_record(self.clock.now()), found.tag)
        except Refused:
            return False
        return True

    async def _finish(self, keys: Sequence[str], elapsed: Callable[[], float]) -> None:
        """Delete the objects with these keys. They are dead records: objects in place of deleted blobs or threads. This
        process has become their owner, so that no other deletes them for a minute. `elapsed` returns how many seconds
        ago that began, or slightly more.

        Only one request is sent, and none if more than 20 seconds (`IN_TIME`) have passed. As soon as a dead record is
        deleted, others may put the blob again, and a second request would delete the object that they wrote. If the
        request fails, a later cleanup deletes the records.
        """
        await self._bucket.delete_once(keys, lambda: elapsed() <= IN_TIME)

    def _read(self, digest: str, found: Found) -> Record | Dead:
        try:
            return read_record(found.data)
        except NewerObject as error:
            raise self._newer(digest, error) from error
        except BadObject as error:
            raise Corrupt(
                f"{self._key(digest)} in {self._where} is damaged: {error}. Put the blob again, or restore it from a copy."
            ) from error

    def _newer(self, digest: str, error: NewerObject) -> NewerFormat:
        return NewerFormat(f"{self._key(digest)} in {self._where}", error.version, VERSION)

    def _key(self, digest: str) -> str:
        return f"{self.folder}/{digest}"

    def _data_key(self, digest: str, name: str) -> str:
        return f"{self.data_folder}/{digest}/{name}"

    def _remember(self, digest: str, tag: Tag, state: Record) -> None:
        self._forget(digest)
        self._records[digest] = tag, state
        self._size += len(state.data) + BLOB_HEADER
        while self._size > REMEMBERED:
            self._forget(next(iter(self._records)))

    def _forget(self, digest: str) -> None:
        if (known := self._records.pop(digest, None)) is not None:
            self._size -= len(known[1].data) + BLOB_HEADER


def _fields(state: Record) -> tuple[int, bytes, str]:
    return state.touched, state.data, state.name


def _digest(key: str) -> str:
    return key.rpartition("/")[2]
