"""The SQLite store. It is one file, which many asyncio tasks and many processes can use at the same time."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw

from clew._runtime.aio import apart
from clew.checkpointers.base import Checkpointer, frees_room, is_abandoned
from clew.checkpointers.checks import (
    Guard,
    check_append,
    check_blobs,
    check_digests,
    check_grace,
    check_namespace,
    check_query,
    check_range,
    check_stored_blob,
    check_thread_id,
    too_large,
)
from clew.checkpointers.heads import Head, HeadQuery, due_place, grace_micros, micros, thread_digest
from clew.checkpointers.out_of_memory import explains_lack_of_memory, out_of_memory
from clew.checkpointers.patience import TIMEOUT, timeout_seconds
from clew.checkpointers.sql.heads import UNLIMITED, Listing, decode_head, tags_column, title_column, with_sum
from clew.checkpointers.sql.listing import is_stale
from clew.checkpointers.sqlite.appends import Append, now, touch
from clew.checkpointers.sqlite.backup import Backup, backup
from clew.checkpointers.sqlite.engine import Engine, close_engine, open_engine
from clew.checkpointers.sqlite.lookups import find_thread, list_rows
from clew.checkpointers.sqlite.packs import frames_of
from clew.checkpointers.sqlite.room import BlobDeletion, ThreadDeletion
from clew.checkpointers.urls import file_options, without_options
from clew.errors import Corrupt, InvalidInput

__all__ = ["SQLiteCheckpointer"]


@explains_lack_of_memory(but=("append",))
class SQLiteCheckpointer(Checkpointer):
    """A store in one SQLite file, in WAL mode with `synchronous = FULL`: an acknowledged append is on the disk.

    All checkpointers that a process opens on the same file with the same `timeout` share one OS thread that writes, so
    appends that are made at the same time share one fsync. Several processes may use the same file. Network file
    systems are refused, because SQLite's WAL is not safe on them. `timeout` is how many seconds a call waits while
    another process has locked the file and writes nothing.
    """

    def __init__(self, path: str | os.PathLike[str], namespace: str = "", *, timeout: float = TIMEOUT) -> None:
        check_namespace(namespace)
        self._timeout = timeout_seconds(timeout)
        self._path = Path(os.path.abspath(Path(path).expanduser()))
        self._name = str(self._path)
        self._namespace = namespace
        self.place = f"sqlite:{self._path}#{namespace}"
        self.own_files = tuple(self._path.with_name(self._path.name + end) for end in _ENDINGS)
        self._guard = Guard(f"the SQLite checkpointer of {self._path}")
        self._engine: Engine | None = None

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> SQLiteCheckpointer:
        """Open the file that the URL names: `sqlite:///relative.db` or `sqlite:////absolute.db`, perhaps with
        `?timeout=30`, the seconds to wait while another process has locked the file. `namespace` selects a separate
        part of the store. Raises `InvalidInput` for a URL of any other form."""
        named, options = file_options(url)
        path = named.removeprefix("sqlite:///")
        if path == named or not path or path.endswith("/"):
            raise InvalidInput(
                f"{without_options(url)} is not a SQLite file. Write sqlite:///relative.db or sqlite:////absolute.db. The "
                "only option is ?timeout=."
            )
        return cls(path, namespace, timeout=timeout_seconds(options.get("timeout", TIMEOUT)))

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        try:
            loop = self._guard.enter()
            encoded = check_append(thread_id, frames, at, head, refs)
            append = Append(
                thread_id,
                self._namespace,
                thread_digest(thread_id),
                head.log_id,
                at,
                frames,
                [bytes.fromhex(digest) for digest in refs] if refs else (),
                (
                    head.frames,
                    thread_id,
                    head.status,
                    head.agent,
                    head.parent[0] if head.parent else None,
                    _created(head.created_at),
                    micros(head.updated_at),
                    with_sum(encoded),
                    title_column(head.title),
                    tags_column(head.tags),
                    due_place(head),
                ),
                sum(map(len, frames)) + len(encoded),
                frees_room.get(),
                is_abandoned.get(),
            )
            await (self._engine or self._use()).submit(append, loop)
        except MemoryError as error:
            raise out_of_memory(self) from error

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        loop = self._guard.enter()
        check_range(thread_id, start, stop)

        def work(db: apsw.Cursor) -> list[bytes]:
            found = find_thread(db, self._namespace, thread_id, self._name)
            if found is None:
                return []
            end = found.frames if stop is None else min(stop, found.frames)
            try:
                frames = frames_of(db, found.id, start, end) if start < end else []
            except (MemoryError, apsw.NoMemError) as error:
                raise too_large(thread_id) from error.with_traceback(None)  # a traceback would keep what was read
            if len(frames) != max(0, end - start) or not {bytes}.issuperset(map(type, frames)):
                raise Corrupt(
                    f"thread {thread_id!r} in {self._path} lacks frames from {start} to {end}. Restore a copy."
                )
            return frames

        return await self._use().read(work, loop)

    async def head(self, thread_id: str) -> Head | None:
        loop = self._guard.enter()
        check_thread_id(thread_id)

        def work(db: apsw.Cursor) -> Head | None:
            found = find_thread(db, self._namespace, thread_id, self._name)
            return None if found is None else decode_head(found.head, thread_id, self._name)

        return await self._use().read(work, loop)

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        loop = self._guard.enter()
        check_query(query)
        statement, values = _listing(self._namespace, query)
        is_everything = query.order != "due" and query == HeadQuery(order=query.order)
        everything_in = self._namespace if is_everything else None
        found = await self._use().read(lambda db: list_rows(db, statement, values, everything_in), loop)
        listing = Listing(self._name)
        for head in listing.sound(found.rows):
            if not is_stale(query, head):
                yield head
        listing.end()
        if not found.is_whole:
            raise Corrupt(f"{self._path}: the index by which threads are listed is damaged. Restore a copy.")

    async def refs(self, thread_id: str) -> set[str]:
        loop = self._guard.enter()
        check_thread_id(thread_id)

        def work(db: apsw.Cursor) -> set[str]:
            found = find_thread(db, self._namespace, thread_id, self._name)
            if found is None:
                return set()
            digests = db.execute("SELECT digest FROM refs WHERE thread = ?", (found.id,)).fetchall()
            return {_hex(digest, self._name) for (digest,) in digests}

        return await self._use().read(work, loop)

    async def delete(self, thread_id: str) -> None:
        loop = self._guard.enter()
        check_thread_id(thread_id)
        deletion = ThreadDeletion(self._namespace, thread_id, self._name, is_abandoned.get())
        await self._use().write(deletion, loop)
        deletion.check_wanted()

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        loop = self._guard.enter()
        check_blobs(blobs)
        namespace = self._namespace
        by_digest = {bytes.fromhex(digest): data for digest, data in blobs.items()}

        def work(db: apsw.Cursor) -> None:
            for digest in touch(db, namespace, list(by_digest)):
                db.execute("INSERT INTO blobs (ns, digest, touched) VALUES (?, ?, ?)", (namespace, digest, now()))
                row_id = db.connection.last_insert_rowid()
                db.execute("INSERT INTO blob_data VALUES (?, ?)", (row_id, by_digest[digest]))

        await self._use().write(work, loop)

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        loop = self._guard.enter()
        check_digests(digests)
        namespace = self._namespace

        def work(db: apsw.Cursor) -> dict[str, bytes]:
            found = {}
            for digest in digests:
                row = db.execute(_GET_BLOB, (namespace, bytes.fromhex(digest))).fetchone()
                if row is not None:
                    check_stored_blob(digest, row[0], self._name)
                    found[digest] = row[0]
            return found

        return await self._use().read(work, loop)

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        loop = self._guard.enter()
        check_digests(digests)
        namespace = self._namespace
        missing = await self._use().write(lambda db: touch(db, namespace, [bytes.fromhex(d) for d in digests]), loop)
        return {digest.hex() for digest in missing}

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        loop = self._guard.enter()
        check_grace(untouched_for)
        wanted = self._namespace, _before(untouched_for)
        statement = "SELECT digest FROM blobs WHERE ns = ? AND touched <= ?"
        rows: list[tuple[Any, ...]] = await self._use().read(lambda db: db.execute(statement, wanted).fetchall(), loop)
        for (digest,) in rows:
            yield _hex(digest, self._name)

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        loop = self._guard.enter()
        check_digests(digests)
        check_grace(untouched_for)
        wanted = [bytes.fromhex(digest) for digest in digests]
        deletion = BlobDeletion(self._namespace, wanted, lambda: _before(untouched_for), is_abandoned.get())
        await self._use().write(deletion, loop)
        deletion.check_wanted()

    async def backup(
        self, target: str | os.PathLike[str], progress: Callable[[int, int | None], None] | None = None
    ) -> Backup:
        """Copy the whole store, with all namespaces, to a new file while the store is in use. Returns the path and the
        size of the copy.

        The copy is the store as it was at one moment, and has every append acknowledged before the call. Raises
        `InvalidInput` if `target` exists. `progress` is called from time to time, on another OS thread, with two
        numbers: the pages copied so far, and the pages in total, which are never None here.
        """
        self._guard.enter()
        return await asyncio.to_thread(backup, self._path, Path(target), progress, timeout=self._timeout)

    async def close(self) -> None:
        if self._guard.close(on_any_loop=True) and self._engine is not None:
            engine, self._engine = self._engine, None
            engine.hand_over(asyncio.get_running_loop())
            await apart(functools.partial(close_engine, engine))

    def _use(self) -> Engine:
        if self._engine is None:
            self._engine = open_engine(self._path, self._timeout)
        return self._engine


_ENDINGS = ("", "-wal", "-shm", "-journal", "-reserve")
"""The endings of the names of a store's files, each appended to the path of the store: the database itself (no ending),
and the files beside it."""
_created = functools.lru_cache(4096)(micros)
"""Returns a thread's time of creation in microseconds since 1970. Cached, because every append to a thread asks for the
same time again."""


_GET_BLOB = "SELECT data FROM blobs JOIN blob_data USING (id) WHERE ns = ? AND digest = ?"


def _listing(namespace: str, query: HeadQuery) -> tuple[str, list[object]]:
    """Return the SELECT statement that lists the heads that match a query, and the values of its placeholders."""
    where: list[str] = ["ns = ?"]
    values: list[object] = [namespace]

    def add(condition: str, *given: object) -> None:
        where.append(condition)
        values.extend(given)

    updated = "updated"
    if query.order == "due":
        add("due IS NOT NULL")
        updated = "+updated"  # the plus keeps SQLite from reading the index by time, in which all threads are
    if query.prefix:
        add("substr(thread_id, 1, ?) = ?", len(query.prefix), query.prefix)
    if (statuses := query.statuses()) is not None:
        add(f"status IN ({', '.join('?' * len(statuses))})", *statuses)
    if query.agent is not None:
        add("agent = ?", query.agent)
    if query.parent is not None:
        add("parent = ?", query.parent)
    if query.updated_after is not None:
        add(f"{updated} >= ?", micros(query.updated_after))
    if query.updated_before is not None:
        add(f"{updated} < ?", micros(query.updated_before))
    if query.title:
        add("instr(title, ?)", title_column(query.title))
    for name, value in query.tags.items():
        add("instr(tags, ?)", tags_column({name: value}))
    if (start := query.start()) is not None:
        add(f"({query.order}, key) < (?, ?)", start[0], bytes.fromhex(start[1]))
    statement = f"SELECT head, thread_id FROM heads WHERE {' AND '.join(where)} ORDER BY {query.order} DESC, key DESC"  # noqa: S608 - ours
    if query.limit is not None:
        statement += " LIMIT ?"
        values.append(min(query.limit, UNLIMITED))
    return statement, values


def _hex(digest: object, where: str) -> str:
    if not isinstance(digest, bytes) or len(digest) != 32:
        raise Corrupt(f"{where}: the digest of a blob is damaged. Restore a copy.")
    return digest.hex()


def _before(untouched_for: timedelta) -> int:
    return now() - grace_micros(untouched_for)
