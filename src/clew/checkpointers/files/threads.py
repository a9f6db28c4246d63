"""The thread files of one namespace: appends, reads and deletes, each with the thread's file open and locked."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from clew._runtime import files
from clew._runtime.aio import PutOff
from clew.checkpointers.checks import NO_THREAD, check_wanted, too_large
from clew.checkpointers.files.blobs import BlobFiles
from clew.checkpointers.files.log import TORN, Log
from clew.checkpointers.files.queue import QueueMarkers
from clew.checkpointers.files.root import Root
from clew.checkpointers.heads import Head, thread_key
from clew.errors import ClewError, Conflict, MissingBlob

__all__ = ["ThreadFiles"]

_BINARY: int = getattr(os, "O_BINARY", 0)
_KNOWN = 1024
"""The most threads for which the positions of records in their files are remembered."""


class ThreadFiles:
    """The thread files of one namespace of a file store. A file is a sequence of records, one for each append. A thread
    does not exist if its file is missing or holds no complete record."""

    def __init__(self, root: Root, blobs: BlobFiles) -> None:
        self.folder = root.space / "threads"
        self._prefix = f"{self.folder}{os.sep}"
        self._root = root
        self._blobs = blobs
        self.queue = QueueMarkers(root)
        self._logs: OrderedDict[str, Log] = OrderedDict()
        self._logs_lock = threading.Lock()

    def path(self, key: str) -> str:
        return f"{self._prefix}{key[:2]}{os.sep}{key}"

    def append(
        self,
        thread_id: str,
        frames: Sequence[bytes],
        at: int,
        head: Head,
        refs: Collection[str],
        ask: Callable[[], bool] | None = None,
    ) -> None:
        """Add frames and refs (digests of blobs) to a thread, and replace its head. `at` is the number of frames that
        the log must have before. Writes nothing if the log already holds these frames there.

        Raises `Conflict` if the log does not have exactly `at` frames or its id is not the `log_id` of `head`, and
        `MissingBlob` if the store lacks a blob. `ask` returns whether nobody waits for the append any more; if so,
        raises `Unavailable`.
        """
        key = thread_key(thread_id)
        create = at == 0 and len(frames) > 0
        with self.opened(key, shared=False, create=create) as fd:
            if fd is None:
                raise Conflict(thread_id, NO_THREAD)
            log = self._log(key, thread_id)
            size = log.refresh(fd)
            try:
                if _holds_already(fd, log, thread_id, frames, at, head):
                    log.sync(fd, files.sync)  # the process that wrote it may have been killed before its sync
                    return
                if refs and (missing := self._blobs.touch(refs)):
                    raise MissingBlob(missing, thread_id=thread_id)
                if not log.end:
                    folder = Path(log.path).parent
                    self._root.keep(folder)
                    files.sync_folder(folder)
                check_wanted(ask)
                before = log.head()
                was_queued = before is not None and before.due is not None
                if head.due is not None and not (was_queued and self.queue.has(key)):
                    self.queue.add(key)
                log.add(fd, size, frames, refs, head)
                if head.due is None and was_queued:
                    self.queue.remove(key)
            except BaseException:
                if create and not log.end and sys.platform != "win32":
                    with suppress(OSError):
                        os.unlink(log.path)
                raise

    def read(self, thread_id: str, start: int, stop: int | None) -> list[bytes]:
        key = thread_key(thread_id)
        with self.opened(key, shared=True) as fd:
            if fd is None:
                return []
            log = self._log(key, thread_id)
            log.refresh(fd)
            span = log.locate(fd, start, stop)
            files.unlock(fd)  # so that a long read does not block appends
            try:
                return [] if span is None else log.read(fd, span)
            except MemoryError as error:
                raise too_large(thread_id) from error.with_traceback(None)  # a traceback would keep what was read

    def head(self, thread_id: str) -> Head | None:
        key = thread_key(thread_id)
        with self.opened(key, shared=True) as fd:
            if fd is None:
                return None
            log = self._log(key, thread_id)
            log.refresh(fd)
            return log.head()

    def refs(self, thread_id: str) -> set[str]:
        key = thread_key(thread_id)
        with self.opened(key, shared=True) as fd:
            if fd is None:
                return set()
            log = self._log(key, thread_id)
            log.refresh(fd)
            return log.refs(fd)

    def delete(self, thread_id: str, ask: Callable[[], bool] | None = None) -> None:
        """Delete a thread; do nothing if it does not exist. If `ask` is given and returns True, the caller has stopped
        waiting for the deletion: then nothing is deleted, and `Unavailable` is raised."""
        key = thread_key(thread_id)
        path = self.path(key)
        with self.opened(key, shared=False) as fd:
            check_wanted(ask)
            if fd is not None and sys.platform != "win32":
                os.unlink(path)
        with suppress(FileNotFoundError):
            os.unlink(path + TORN)
        with suppress(FileNotFoundError):
            if sys.platform == "win32":  # an open file cannot be removed there
                os.unlink(path)
            files.sync_folder(Path(path).parent)  # even if the file was gone: its deletion may not be synced yet
        if self.queue.has(key):
            self.clear_marker(key)

    def clear_marker(self, key: str) -> None:
        """Remove the marker that the thread with this key (the hash of its id) has in the queue of the workers, if the
        thread is not in the queue. Does nothing if another process has locked the thread: its marker may be new.

        For a thread that does not exist, an empty file is made and locked meanwhile, because somebody may be making the
        thread, and its marker, at the same time.
        """
        with suppress(PutOff, ClewError), self.opened(key, shared=False, create=True) as fd:
            assert fd is not None, "the file is created"  # noqa: S101 - said by `create`
            log = Log(self.path(key), key, "a thread")
            size = log.refresh(fd)
            head = log.head()
            if head is None or head.due is None:
                self.queue.remove(key)
            if not size and sys.platform != "win32":
                os.unlink(log.path)

    @contextmanager
    def opened(self, key: str, *, shared: bool, create: bool = False) -> Iterator[int | None]:
        """Open and lock the file of a thread for a `with` block, which gets its descriptor. `key` is the hash of the
        thread's id. With `shared`, the file is opened for reading and several holders can lock it at once; otherwise it
        is writable and the lock is exclusive. If the file does not exist, `create` decides: with it the file is
        created, without it the block gets None.

        If the file is deleted while this waits for its lock, the path is opened again.
        """
        path = self.path(key)
        try:
            fd = self._open(path, shared, create)
            try:
                yield fd
            finally:
                if fd is not None:
                    try:
                        files.unlock(fd)
                    finally:
                        os.close(fd)
        except (OSError, MemoryError) as error:
            raise self._root.explain(error, path) from error

    def _open(self, path: str, shared: bool, create: bool) -> int | None:
        flags = (os.O_RDONLY if shared else os.O_RDWR) | (os.O_CREAT if create else 0) | _BINARY
        while True:
            try:
                fd = os.open(path, flags, 0o600)
            except FileNotFoundError:
                if not create:
                    self._root.check()
                    return None
                self._root.keep(Path(path).parent)
                fd = os.open(path, flags, 0o600)
            is_kept = False
            try:
                self._root.locks.lock(fd, path, shared=shared)
                is_kept = _is_at(fd, path)
            finally:
                if not is_kept:
                    os.close(fd)  # which releases the lock, too
            if is_kept:
                return fd

    def _log(self, key: str, thread_id: str) -> Log:
        with self._logs_lock:
            log = self._logs.pop(key, None) or Log(self.path(key), key, f"thread {thread_id!r}")
            self._logs[key] = log
            if len(self._logs) > _KNOWN:
                self._logs.popitem(last=False)
            return log


def _holds_already(fd: int, log: Log, thread_id: str, frames: Sequence[bytes], at: int, head: Head) -> bool:
    """Return True if the log already holds exactly these frames from position `at` on, because the same append was made
    before. Return False if they must be written now: the log has `at` frames, or the thread does not exist, `at` is 0
    and there are frames. Otherwise, or if the log has another `log_id` than `head`, raises `Conflict`. `fd` is the open
    file of the log."""
    if not log.end:
        if at > 0 or not frames:
            raise Conflict(thread_id, NO_THREAD)
    elif log.log_id != head.log_id:
        raise Conflict(thread_id, "the thread was deleted and made again; this is another log")
    elif log.frames != at:
        span = log.locate(fd, at, at + len(frames))
        if frames and span is not None and log.read(fd, span) == list(frames):
            return True
        raise Conflict(thread_id, f"its log ends at frame {log.frames}, not {at}")
    return False


def _is_at(fd: int, path: str) -> bool:
    """Return whether the path still names this open file, and not another file or none."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
