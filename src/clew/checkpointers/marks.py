"""Remembers, outside the store, the newest state that this machine has seen of each thread. So it is noticed if
somebody replaces a thread in the store by an older copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from blake3 import blake3

from clew._runtime import files
from clew.checkpointers.heads import Head, thread_key
from clew.errors import Corrupt, Unavailable

__all__ = ["Marks"]

_MOST_LOGS = 1000
"""How many logs of one thread are remembered. A thread gets a new log each time it is deleted and made again."""


class _Mark(msgspec.Struct, frozen=True):
    """The mark of one thread, which says what this machine has seen of it. `logs` maps the id of each log that the
    thread has had to the number of the log's frames and the digest of the last frame. A thread that is deleted and made
    again gets a new log; the newest log is the last item."""

    logs: dict[str, tuple[int, str]]


class Marks:
    """A folder with one small file for each thread: its mark. The mark says how many frames the thread's log had when
    this machine last saw it, and how the log ended. If the log in the store is older, somebody has put back an older
    copy.

    Choose a folder that people who can write to the store cannot write to. Marks are written without a sync. So after a
    power cut the newest marks may be missing, and a copy that is only a little older is not noticed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()

    def see(self, place: str, head: Head) -> bool:
        """Compare a thread's head with the thread's mark (the newest state that this machine has seen), and bring the
        mark up to date. Returns True if the head is at least as new as the mark.

        Returns False, and does not change the mark, if the thread is older: its log is shorter than before, is as long
        but ends in another frame, or is a log that was replaced by a newer one. `place` identifies the store.
        """
        path = self._path(place, head)
        logs = self._read(path)
        if logs and next(reversed(logs.items())) == (head.log_id, (head.frames, head.digest)):
            return True
        with self._alone(path.parent):
            return self._compare(path, head)

    def _compare(self, path: Path, head: Head) -> bool:
        """Compare a thread's head with the mark in the file `path`, which says what this machine has seen of the
        thread. If the head is at least as new, bring the mark up to date and return True. If it is older, return False.

        The caller holds a lock on the marks, so that no other process changes the mark between reading and writing.
        """
        logs = self._read(path)
        if head.log_id in logs:
            frames, digest = logs[head.log_id]
            is_replaced = next(reversed(logs)) != head.log_id
            if is_replaced or head.frames < frames or (head.frames == frames and head.digest != digest):
                return False
            if head.frames == frames:
                return True
        logs[head.log_id] = (head.frames, head.digest)
        while len(logs) > _MOST_LOGS:
            del logs[next(iter(logs))]
        self._write(path, _Mark(logs))
        return True

    @contextmanager
    def _alone(self, folder: Path) -> Iterator[None]:
        """Lock this folder during the `with` block, so that no other process or OS thread changes the marks in it.
        Raises `Unavailable` if the folder cannot be locked."""
        try:
            files.make_private_folder(folder)
            fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(f"the marks in {folder} cannot be locked: {error.strerror}") from error
        try:
            files.lock(fd, folder / "lock", shared=False)
            yield
        finally:
            os.close(fd)

    def error(self, place: str, head: Head) -> Corrupt:
        """Return the error for a thread that is older than its mark (the newest state that this machine has seen).
        `head` is the head that was found, and `place` identifies the store."""
        return Corrupt(
            f"thread {head.thread_id!r} is older than this machine has seen it before: somebody has put back an older copy, "
            f"of which {head.frames} frames are left. If that was you, delete the mark of the thread: "
            f"{self._path(place, head)}"
        )

    def _path(self, place: str, head: Head) -> Path:
        key = thread_key(head.thread_id)
        return self.folder / blake3(place.encode()).hexdigest()[:16] / key[:2] / f"{key}.mark"

    def _read(self, path: Path) -> dict[str, tuple[int, str]]:
        """Read a thread's mark from this file. Returns a dict with an item for each log that this machine has seen of
        the thread: the log's id, with the number of its frames and the digest of the last one. The dict is empty if the
        file does not exist. Raises `Unavailable` if the file cannot be read, and `Corrupt` if it is damaged: without
        the mark, an older copy of the thread would not be noticed."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Unavailable(f"the mark of a thread, {path}, cannot be read: {error.strerror}") from error
        try:
            return msgspec.msgpack.decode(data, type=_Mark).logs
        except msgspec.MsgspecError as error:
            raise Corrupt(f"the mark {path} is damaged. Delete it if you trust the thread as it is now.") from error

    def _write(self, path: Path, mark: _Mark) -> None:
        try:
            os.replace(files.write_beside(path, msgspec.msgpack.encode(mark), durable=False), path)
        except OSError as error:
            raise Unavailable(f"the mark of a thread, {path}, cannot be written: {error.strerror}") from error
