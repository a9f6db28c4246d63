"""The file store: threads and blobs as plain files in a folder, without a database."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from clew._runtime.aio import WorkerPool, apart
from clew._runtime.files import is_full
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
    check_thread_id,
)
from clew.checkpointers.files.blobs import BlobFiles
from clew.checkpointers.files.heads import HeadFiles
from clew.checkpointers.files.locks import Call, FileLocks
from clew.checkpointers.files.root import Root
from clew.checkpointers.files.threads import ThreadFiles
from clew.checkpointers.heads import Head, HeadQuery, select, unlisted
from clew.checkpointers.out_of_memory import explains_lack_of_memory
from clew.checkpointers.patience import TIMEOUT, timeout_seconds
from clew.checkpointers.urls import file_options, without_options
from clew.errors import Corrupt, InvalidInput, Unavailable

__all__ = ["FileCheckpointer"]

T = TypeVar("T")
WORKERS = 8
"""The number of OS threads that wait for the disk, so that appends to different threads are synced concurrently."""


@explains_lack_of_memory()
class FileCheckpointer(Checkpointer):
    """A store in a folder of plain files, which can be copied and backed up with ordinary tools.

    Each append is one write and one sync of the thread's own file. Several processes may use one folder; a lock on each file
    makes its writers wait for each other. An append that a crash cut short is ignored by readers and removed by the next
    append. Damaged bytes raise `Corrupt` and are never removed. `timeout` is how many seconds a call waits while another
    process has locked a file and writes nothing to it.
    """

    def __init__(self, path: str | os.PathLike[str], namespace: str = "", *, timeout: float = TIMEOUT) -> None:
        check_namespace(namespace)
        if "\0" in os.fspath(path):
            raise InvalidInput(f"{path!r}: a path cannot hold NUL characters")
        self._locks = FileLocks(timeout_seconds(timeout))
        self._root = Root(Path(os.path.abspath(Path(path).expanduser())), namespace, self._locks)
        self._blobs = BlobFiles(self._root)
        self._threads = ThreadFiles(self._root, self._blobs)
        self._heads = HeadFiles(self._root, self._threads)
        self.place = f"file:{self._root.path}#{namespace}"
        self.own_files = (self._root.path,)
        self._guard = Guard(f"the file checkpointer of {self._root.path}")
        self._pool: WorkerPool | None = None

    @classmethod
    def from_url(cls, url: str, namespace: str = "") -> FileCheckpointer:
        """Open the folder that the URL names: `file:///absolute/dir` or `file:relative/dir`, perhaps with
        `?timeout=30`. The path is used as written, so `%20` is not decoded. Raises `InvalidInput` for a URL of any other
        form."""
        named, options = file_options(url)
        path = named.removeprefix("file:")
        if path.startswith("//"):
            path = path[2:] if path.startswith("///") else ""
        if path == named or not path.strip("/"):
            raise InvalidInput(
                f"{without_options(url)} does not name a folder. Write file:///absolute/dir or file:relative/dir, without "
                "host. The only option is ?timeout=."
            )
        if sys.platform == "win32" and path[2:3] == ":":
            path = path.lstrip("/")
        return cls(path, namespace, timeout=timeout_seconds(options.get("timeout", TIMEOUT)))

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        loop = self._guard.enter()
        check_append(thread_id, frames, at, head, refs)
        is_freeing, ask = frees_room.get(), is_abandoned.get()

        def work() -> None:
            try:
                self._threads.append(thread_id, frames, at, head, refs, ask)
            except Unavailable as error:
                if not (is_freeing and is_full(error.__cause__) and self._root.reserve.release()):
                    raise
                self._threads.append(thread_id, frames, at, head, refs, ask)

        await self._run(work, loop)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        loop = self._guard.enter()
        check_range(thread_id, start, stop)
        return await self._run(lambda: self._threads.read(thread_id, start, stop), loop)

    async def head(self, thread_id: str) -> Head | None:
        loop = self._guard.enter()
        check_thread_id(thread_id)
        return await self._run(lambda: self._threads.head(thread_id), loop)

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        """Yield the heads that match the query, in its order. If files of threads are damaged, a `Corrupt` error that
        names them is raised after all other heads."""
        loop = self._guard.enter()
        check_query(query)
        found, damaged = await self._run(lambda: self._list(query), loop)
        for head in found:
            yield head
        if damaged:
            raise unlisted(damaged)

    async def refs(self, thread_id: str) -> set[str]:
        loop = self._guard.enter()
        check_thread_id(thread_id)
        return await self._run(lambda: self._threads.refs(thread_id), loop)

    async def delete(self, thread_id: str) -> None:
        loop = self._guard.enter()
        check_thread_id(thread_id)
        ask = is_abandoned.get()

        def work() -> None:
            self._threads.delete(thread_id, ask)
            self._root.reserve.hold()

        await self._run(work, loop)

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        loop = self._guard.enter()
        check_blobs(blobs)
        await self._run(lambda: self._blobs.put(blobs), loop)

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        loop = self._guard.enter()
        check_digests(digests)
        return await self._run(lambda: self._blobs.get(digests), loop)

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        loop = self._guard.enter()
        check_digests(digests)
        return await self._run(lambda: self._blobs.touch(digests), loop)

    async def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        loop = self._guard.enter()
        check_grace(untouched_for)
        for digest in await self._run(lambda: self._blobs.untouched(untouched_for), loop):
            yield digest

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        loop = self._guard.enter()
        check_digests(digests)
        check_grace(untouched_for)
        await self._run(lambda: self._blobs.delete(digests, untouched_for), loop)

    async def close(self) -> None:
        if self._guard.close(on_any_loop=True) and self._pool is not None:
            pool, self._pool = self._pool, None
            await apart(pool.stop)

    async def _run(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> T:
        """Run this function on an OS thread of the worker pool, and return its result. Before it, create or check the
        store's folder if that has not been done yet. `loop` is the event loop of the caller. An `OSError` or a
        `MemoryError` is raised as the `ClewError` that explains it."""

        call = Call()

        def explained(_: None) -> T:
            self._locks.work_for(call)
            try:
                self._root.open()
                return work()
            except (OSError, MemoryError) as error:
                raise self._root.explain(error) from error

        if self._pool is None:
            self._pool = WorkerPool("clew-files", WORKERS, lambda: None, lambda _: None)
        return await self._pool.run(explained, loop)

    def _list(self, query: HeadQuery) -> tuple[list[Head], list[Corrupt]]:
        heads, damaged = self._heads.queued() if query.order == "due" else self._heads.all()
        return select(heads, query), damaged
