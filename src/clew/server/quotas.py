"""Quotas: how many threads and bytes a tenant may keep. A ledger counts what each tenant stores through the service, and a
wrapper around its store refuses what would be too much."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import apsw

from clew._runtime import files
from clew._runtime.aio import Locks
from clew._runtime.text import size as shown_size
from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.heads import thread_key
from clew.checkpointers.wrapper import WrappedCheckpointer
from clew.errors import InvalidInput
from clew.server.failures import Refused

__all__ = ["Ledger", "Metered"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    tenant TEXT NOT NULL, namespace TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    frames INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (tenant, namespace, kind, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (
    tenant TEXT PRIMARY KEY, threads INTEGER NOT NULL, bytes INTEGER NOT NULL
) WITHOUT ROWID;
"""
_ROW = 64
"""Bytes that are counted for each frame and each reference to a blob, beside its content, so that empty ones are not
free."""
_BUSY = 5000
"""Milliseconds to wait for another process that writes to the file."""


class _Coming:
    """How many threads and bytes the unfinished writes of a tenant (a client of the service, with threads of its own)
    will add to what the tenant keeps."""

    __slots__ = ("size", "threads")

    def __init__(self) -> None:
        self.threads = self.size = 0


class Ledger:
    """Counts the threads and blobs that each tenant keeps, with their sizes, in a SQLite file. Only what passes through
    the service after the file was made is counted. `threads` and `size` are the most threads and bytes that a tenant
    may have; None is no limit. A power failure may lose the last counts, but never what is stored."""

    def __init__(self, path: Path, threads: int | None, size: int | None) -> None:
        """Open the SQLite file at `path`, which is made if it does not exist. `threads` and `size` are the most threads
        and bytes that a tenant may have; None is no limit. Raises `InvalidInput` if the file cannot be opened."""
        self._threads = threads
        self._size = size
        self._coming: dict[str, _Coming] = {}
        self._locks = Locks()
        try:
            files.make_private_file(path)
            self._db = apsw.Connection(str(path))
            self._db.set_busy_timeout(_BUSY)
            self._db.execute(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {_SCHEMA}").fetchall()
        except (OSError, apsw.Error) as error:
            raise InvalidInput(f"{path}: the ledger of quotas cannot be opened: {error}") from None

    @contextmanager
    def reserved(self, tenant: str, *, threads: int, size: int) -> Iterator[None]:
        """Reserve room for `threads` more threads and `size` more bytes until the block ends, so that no two writes at
        the same time use the same room. The block stores the threads or blobs and counts them with `add`. If the block
        raises an error, the room is free again. Raises `Refused` if the tenant may not have so many threads or
        bytes."""
        kept = self._db.execute("SELECT threads, bytes FROM totals WHERE tenant = ?", (tenant,)).fetchone() or (0, 0)
        coming = self._coming.setdefault(tenant, _Coming())
        has_threads, has_bytes = kept[0] + coming.threads, kept[1] + coming.size
        if threads and self._threads is not None and has_threads + threads > self._threads:
            raise Refused(
                "forbidden",
                f"the tenant {tenant} has {has_threads} threads, and may have {self._threads}. Delete some first.",
            )
        if size and self._size is not None and has_bytes + size > self._size:
            raise Refused(
                "forbidden",
                f"the tenant {tenant} keeps {shown_size(has_bytes)}, and may keep {shown_size(self._size)}; this has "
                f"{shown_size(size)}. Delete threads, and collect what they leave, first.",
            )
        coming.threads += threads
        coming.size += size
        try:
            yield
        finally:
            coming.threads -= threads
            coming.size -= size

    def lock(self, tenant: str, namespace: str, name: str) -> asyncio.Lock:
        """Return the lock of a thread, which is in this namespace (part of the tenant's store). The lock is held while
        the thread is written or deleted and counted, so that its count is always that of the last write. `name` is the
        thread's key, a hash of its id."""
        return self._locks[f"{tenant}\0{namespace}\0{name}"]

    def frames(self, tenant: str, namespace: str, name: str) -> int | None:
        """Return how many frames this ledger counts for a thread in this namespace (part of the tenant's store), or
        None if it does not count the thread yet. `name` is the thread's key, a hash of its id."""
        found = self._db.execute(
            "SELECT frames FROM kept WHERE tenant = ? AND namespace = ? AND kind = 'thread' AND name = ?",
            (tenant, namespace, name),
        ).fetchone()
        return None if found is None else int(found[0])

    def unknown(self, tenant: str, namespace: str, digests: Collection[str]) -> set[str]:
        """Return the digests of those blobs that were not yet counted for this tenant and namespace (part of the
        tenant's store)."""
        query = "SELECT 1 FROM kept WHERE tenant = ? AND namespace = ? AND kind = 'blob' AND name = ?"
        return {digest for digest in digests if not self._db.execute(query, (tenant, namespace, digest)).fetchone()}

    def add(self, tenant: str, namespace: str, kind: str, sizes: Mapping[str, int], frames: int = 0) -> None:
        """Add threads or blobs of a namespace (part of the tenant's store) to the tenant's counts. `kind` is `thread`
        or `blob`. `sizes` has how many bytes were stored for each, by the key of the thread (a hash of its id) or the
        digest of the blob. `frames` is how many frames the thread now has; 0 for blobs. A blob that was counted
        meanwhile, because another request stored it too, is not counted again."""
        with self._db:
            for name, size in sizes.items():
                self._db.execute(
                    "INSERT OR IGNORE INTO kept VALUES (?, ?, ?, ?, 0, 0)", (tenant, namespace, kind, name)
                )
                is_new = self._db.changes()
                if kind == "blob" and not is_new:
                    continue
                self._db.execute(
                    "UPDATE kept SET frames = ?, bytes = bytes + ? "
                    "WHERE tenant = ? AND namespace = ? AND kind = ? AND name = ?",
                    (frames, size, tenant, namespace, kind, name),
                )
                self._change(tenant, is_new if kind == "thread" else 0, size)

    def remove(self, tenant: str, namespace: str, kind: str, names: Collection[str]) -> None:
        """Take deleted threads or blobs of a namespace (part of the tenant's store) out of the tenant's counts. `kind`
        is `thread` or `blob`. `names` has the keys of the threads (hashes of their ids) or the digests of the blobs."""
        with self._db:
            for name in names:
                key = (tenant, namespace, kind, name)
                where = "WHERE tenant = ? AND namespace = ? AND kind = ? AND name = ?"
                found = self._db.execute(f"SELECT bytes FROM kept {where}", key).fetchone()  # noqa: S608 - constants
                if found is not None:
                    self._db.execute(f"DELETE FROM kept {where}", key)  # noqa: S608 - constants
                    self._change(tenant, -1 if kind == "thread" else 0, -found[0])

    def _change(self, tenant: str, threads: int, size: int) -> None:
        self._db.execute("INSERT OR IGNORE INTO totals VALUES (?, 0, 0)", (tenant,))
        self._db.execute(
            "UPDATE totals SET threads = threads + ?, bytes = bytes + ? WHERE tenant = ?", (threads, size, tenant)
        )

    def close(self) -> None:
        self._db.close()


class Metered(WrappedCheckpointer):
    """Wraps the store of a tenant, and makes it keep the tenant's quotas. Passes every call on to the store, counts
    what is stored, and raises `Refused` for a write that would exceed a quota. Reading and deleting are never
    refused."""

    def __init__(self, store: Checkpointer, ledger: Ledger, tenant: str, namespace: str) -> None:
        super().__init__(store)
        self._ledger = ledger
        self._tenant = tenant
        self._namespace = namespace

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        ledger, name = self._ledger, thread_key(thread_id)
        added = sum(map(len, frames)) + _ROW * (len(frames) + len(refs))
        async with ledger.lock(self._tenant, self._namespace, name):
            known = ledger.frames(self._tenant, self._namespace, name)
            if known is not None and known >= at + len(frames):  # nothing new: a repetition, or only a head
                await self.store.append(thread_id, frames, at=at, head=head, refs=refs)
                return
            with ledger.reserved(self._tenant, threads=int(known is None and not at), size=added):
                await self.store.append(thread_id, frames, at=at, head=head, refs=refs)
                if frames:
                    ledger.add(self._tenant, self._namespace, "thread", {name: added}, at + len(frames))

    async def delete(self, thread_id: str) -> None:
        name = thread_key(thread_id)
        async with self._ledger.lock(self._tenant, self._namespace, name):
            await self.store.delete(thread_id)
            self._ledger.remove(self._tenant, self._namespace, "thread", [name])

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        sizes = {name: len(blobs[name]) for name in self._ledger.unknown(self._tenant, self._namespace, blobs)}
        with self._ledger.reserved(self._tenant, threads=0, size=sum(sizes.values())):
            await self.store.put_blobs(blobs)
            self._ledger.add(self._tenant, self._namespace, "blob", sizes)

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        await self.store.delete_blobs(digests, untouched_for=untouched_for)
        gone = await self.store.missing_blobs(digests)
        self._ledger.remove(self._tenant, self._namespace, "blob", gone)

    async def close(self) -> None:
        """Do nothing. The wrapped store is used by other requests too, and is closed when the service no longer needs
        it."""
