"""Read files of a workspace into chunks, on OS threads beside the event loop, and store the chunks in batches."""

from __future__ import annotations

import asyncio
import functools
import os
import stat
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from clew._runtime.files import network_file_system
from clew.log.blobs import pack_blob
from clew.log.keys import Keyring
from clew.workspace.chunks import chunks, data_of, extents_of
from clew.workspace.manifest import INLINE, FileNode, Limits, LinkNode
from clew.workspace.scan import CHANGED, Fact, Folder, Root, why
from clew.workspace.statcache import is_settled

__all__ = ["UNTRUSTED", "Content", "Outbox", "Reader", "Stopped", "Threads"]

UNTRUSTED = -1
"""The ctime that the cache keeps for a file that must be read again by the next snapshot. No real file has this ctime,
so the cached facts of the file never match."""
_TRIES = 3
_BATCH = 8 * 2**20
_FILE = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


class Content(msgspec.Struct, frozen=True, gc=False):
    """The result of reading one file or link for a snapshot: how the snapshot lists it, the digests of the chunks
    (parts) that the file was cut into, and the problem if there was one."""

    node: FileNode | LinkNode | None = None
    """The file or link as the snapshot lists it. None if it is not part of the snapshot."""
    leaves: str = ""
    """The digests of the file's chunks, joined into one text. There are many of these objects, and a list in each would
    cost time."""
    fact: Fact | None = None
    """The facts about the file (such as size and times) that the cache keeps, by which the next snapshot sees whether
    the file has changed. None if it is not part of the snapshot."""
    problem: str | None = None
    """The problem that the snapshot reports for the file or link, in words. None if there was none."""


class Outbox:
    """Collects the blobs that one OS thread makes, and passes them in batches to the event loop, which stores them. At
    most one batch is being stored while the next is filled, so that memory stays bounded."""

    def __init__(
        self,
        store: Callable[[dict[str, bytes]], Coroutine[Any, Any, None]],
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
    ) -> None:
        self._store = store
        self._loop = loop
        self._threads = threads
        self._batch: dict[str, bytes] = {}
        self._size = 0
        self._under_way: Future[None] | None = None

    def add(self, digest: str, packed: bytes) -> None:
        """Add a blob to the batch of blobs to be stored next. If that fills the batch, pass it on to be stored; wait
        first if another batch is still being stored."""
        if digest not in self._batch:
            self._batch[digest] = packed
            self._size += len(packed)
            if self._size >= _BATCH:
                self._send()

    def finish(self) -> None:
        """Pass on the last batch of blobs to be stored, and wait until everything is stored."""
        if self._batch:
            self._send()
        self._wait()

    def cancel(self) -> None:
        """If an OS thread that adds blobs to this outbox waits for a batch of blobs to be stored, end its wait: it gets
        the error `Stopped`. The event loop calls this after a failure or a cancellation."""
        if self._under_way is not None:
            self._under_way.cancel()

    def _send(self) -> None:
        self._wait()
        batch, self._batch, self._size = self._batch, {}, 0
        self._under_way = asyncio.run_coroutine_threadsafe(self._store(batch), self._loop)

    def _wait(self) -> None:
        self._threads.go_on()
        if self._under_way is not None:
            try:
                self._under_way.result()
            except CancelledError:
                raise Stopped from None
            self._under_way = None


class Reader:
    """Reads files and links below one root folder. Any number of OS threads may use it at the same time."""

    def __init__(self, root: Root, limits: Limits, keys: Keyring | None, threads: Threads) -> None:
        self._root = root
        self._limits = limits
        self._keys = keys
        self._threads = threads

    def read(self, folder: Folder, seen: Fact, outbox: Outbox) -> Content:
        """Read a file or link that the walk over the workspace has seen, and return the result. The chunks of a file,
        which are the parts that it is cut into, are put into the outbox to be stored.

        `seen` are the facts, such as name, size and times, that the walk saw. If the name is gone by now, the result is
        empty. If the file or link cannot be read, the result names the problem. A file that changes while it is read is
        read again; if it keeps changing, the last version read is kept, and the result says so.
        """
        path = folder.at(seen[0])
        content: Content | None = None
        try:
            if stat.S_ISLNK(seen[1]):
                return self._read_link(path, seen)
            for tries in range(_TRIES):
                content = self._read_file(path, seen, folder.dev, outbox)
                if content.problem != CHANGED:
                    break
                time.sleep(0.001 * tries)
        except (FileNotFoundError, NotADirectoryError):
            return Content()
        except OSError as error:
            return Content(problem=why(error))
        return content or Content()

    def _read_link(self, path: bytes, seen: Fact) -> Content:
        began = time.time_ns()
        target, facts = self._root.read_link(path)
        node = LinkNode(seen[0], stat.S_IMODE(facts.st_mode), facts.st_mtime_ns, target)
        return Content(node, "", self._fact(seen, facts, began))

    def _read_file(self, path: bytes, seen: Fact, dev: int, outbox: Outbox) -> Content:
        """Read a file once, and put its chunks (parts of the file) into the outbox to be stored. Returns how the
        snapshot lists the file. `seen` are the facts that the walk over the workspace saw, such as name, size and
        times, and `dev` is the device on which the file was. The result has a `problem` if the file changed while it
        was read, is too large, or is no longer a regular file; in the last two cases the snapshot leaves it out."""
        began = time.time_ns()
        fd = self._root.open(path, _FILE)
        try:
            facts = os.fstat(fd)
            if facts.st_ino != seen[5] or facts.st_dev != dev:
                # The file was replaced since the walk, or a folder above it was replaced by a link that leads elsewhere.
                strictly = self._root.open_strictly(path, _FILE)
                os.close(fd)
                fd = strictly
                facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                return Content(problem=CHANGED)
            size = facts.st_size
            extents = extents_of(fd, facts) if size > INLINE else None
            data_size = size if extents is None else sum(length for _, length in extents)
            if data_size > self._limits.file_bytes:
                return Content(problem=f"larger than the limit of {self._limits.file_bytes} bytes")
            inline, leaves, length = self._read_data(fd, size, data_size, extents, outbox)
            after = os.fstat(fd)
        finally:
            os.close(fd)
        changed = length != data_size or _version(facts) != _version(after)
        if changed and extents is None:
            size = length
        elif extents is not None:
            extents = _up_to(length, extents)
        node = FileNode(
            seen[0], stat.S_IMODE(facts.st_mode), facts.st_mtime_ns, size, len(leaves), inline, extents, seen[6]
        )
        return Content(
            node, "".join(leaves), self._fact(seen, facts, 0 if changed else began), CHANGED if changed else None
        )

    def _read_data(
        self, fd: int, size: int, data_size: int, extents: tuple[tuple[int, int], ...] | None, outbox: Outbox
    ) -> tuple[bytes, list[str], int]:
        """Read a file's data and put its chunks (parts of the file) into the outbox to be stored. `size` is the size of
        the file, `data_size` the size without holes, and `extents` says where the data lies, or is None for a file
        without holes. Returns the content of a file of at most 512 bytes (`INLINE`), which has no chunks, or no bytes
        for a larger one; the digests of the chunks; and how many bytes were read."""
        if size <= INLINE:
            inline = _read_all(fd, size)
            return inline, [], len(inline)
        read = functools.partial(_read_all, fd) if extents is None else data_of(fd, extents)
        leaves, length = [], 0
        for chunk in chunks(read, data_size):
            self._threads.go_on()
            digest, packed = pack_blob(chunk, self._keys)
            outbox.add(digest, packed)
            leaves.append(digest)
            length += len(chunk)
            if length > data_size:  # the file may grow faster than it can be read
                break
        return b"", leaves, length

    def _fact(self, seen: Fact, facts: os.stat_result, began: int) -> Fact:
        """Return the facts (such as size and times) that the cache keeps of a file or link, so that the next snapshot
        reads it only if they have changed. `seen` are the facts that the walk over the workspace saw, `facts` is the
        stat result when the file was opened, and `began` is when reading began, in nanoseconds.

        If a later change of the file might not change its times, the ctime in the result is `UNTRUSTED`. No file has
        this ctime, so the next snapshot reads the file again.
        """
        elsewhere = facts.st_dev != self._root.facts.st_dev or self._on_network
        trusted = is_settled(facts.st_mtime_ns, facts.st_ctime_ns, began, elsewhere=elsewhere)
        ctime = facts.st_ctime_ns if trusted else UNTRUSTED
        size = 0 if stat.S_ISLNK(facts.st_mode) else facts.st_size
        return (seen[0], facts.st_mode, size, facts.st_mtime_ns, ctime, facts.st_ino, seen[6])

    @functools.cached_property
    def _on_network(self) -> bool:
        return network_file_system(Path(self._root.path)) is not None


def _version(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _read_all(fd: int, count: int) -> bytes:
    """Read this many bytes from the current position of an open file. Returns fewer only at the end of the file."""
    data = os.read(fd, count)
    if len(data) == count or not data:
        return data
    parts = [data]
    while count := count - len(data):
        data = os.read(fd, count)
        if not data:
            break
        parts.append(data)
    return b"".join(parts)


def _up_to(length: int, extents: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Cut the extents of a sparse file (offsets and lengths of its data) so that they hold `length` bytes of data in
    total. Used for a file that was shortened while it was read."""
    kept = []
    for offset, count in extents:
        count = min(count, length)
        if count:
            kept.append((offset, count))
        length -= count
    return tuple(kept)


T = TypeVar("T")
_TICK = 0.1


class Stopped(Exception):
    """Raised in an OS thread to end its work early, after a failure elsewhere or a cancellation."""


class Threads:
    """Runs functions on OS threads and waits for them. After a failure or a cancellation, the event `stop` is set. From
    then on `go_on` raises `Stopped`, which ends the functions that call it."""

    def __init__(self, count: int) -> None:
        self.stop = threading.Event()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="clew-workspace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()  # returns at once, because nothing is running any more

    def go_on(self) -> None:
        """Raise `Stopped` if the work on the OS threads has to end early. The functions that run there call this now
        and then."""
        if self.stop.is_set():
            raise Stopped

    async def run(self, work: Callable[[], T]) -> T:
        """Run one function on an OS thread and return its result. If the function fails or this call is cancelled, the
        method `go_on` raises `Stopped` until the next run, so that the function can end early. Once it has ended, the
        failure or the cancellation is raised."""
        return (await self.run_all([work]))[0]

    async def run_all(
        self,
        works: Sequence[Callable[[], T]],
        *,
        let_go: Callable[[], object] = lambda: None,
        tick: Callable[[], object] | None = None,
    ) -> list[T]:
        """Run these functions at the same time, each on an OS thread, and return their results in order. Meanwhile
        `tick`, if given, is called about every tenth of a second.

        If one function fails, or the caller is cancelled, the others are ended early: the method `go_on`, which they
        call from time to time, raises `Stopped` in them, and `let_go` is called to wake those that wait for something
        else. Once all have ended, the failure or the cancellation is raised.
        """
        loop = asyncio.get_running_loop()
        self.stop.clear()
        jobs = [loop.run_in_executor(self._pool, work) for work in works]
        pending = set(jobs)
        failure: BaseException | None = None
        while pending:
            problem: BaseException | None = None
            try:
                done, pending = await asyncio.wait(
                    pending, timeout=_TICK if tick else None, return_when=asyncio.FIRST_COMPLETED
                )
                # Ask every job for its exception: asyncio logs an error for exceptions that were never retrieved.
                problem = next(iter([error for job in done if (error := job.exception()) is not None]), None)
                if tick is not None and failure is None and problem is None:
                    tick()
            except BaseException as error:  # noqa: BLE001 - raised below, once nothing is running any more
                problem = error
            if problem is not None and failure is None:
                failure = problem
                self.stop.set()
                let_go()
        if failure is not None:
            raise failure
        return [job.result() for job in jobs]
