"""The blobs of one namespace of a file store: one file each, named by its digest. To touch a blob is to set its time of
last use to now; this time is the file's time of modification.

Touching and adding blobs holds the namespace's lock shared, deleting holds it exclusively. So a blob is never touched
between the check of its time and its deletion. Files are synced outside the lock, so that nobody waits for the disk
while holding it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from clew._runtime import files
from clew.checkpointers.checks import check_stored_blob
from clew.checkpointers.files.root import Root

__all__ = ["BlobFiles"]

_LEFTOVER = 86_400.0
"""The age in seconds from which a temporary file is deleted: the process that wrote it must have died."""
_REMEMBERED = 100_000
"""The most blobs for which a process remembers that they have been synced to the disk."""


class BlobFiles:
    """The blobs of one namespace (a separate part) of a file store. All methods block, so they are called on OS threads
    of a worker pool."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._folder = root.space / "blobs"
        self._lock_file = root.space / "blobs.lock"
        self._durable: dict[str, int] = {}

    def put(self, blobs: Mapping[str, bytes]) -> None:
        missing = self.touch(blobs)
        new = [digest for digest in blobs if digest in missing]  # in the given order: a tree comes after its parts
        if not new:
            return
        written: dict[str, Path] = {}
        inodes: dict[str, int] = {}
        try:
            self._root.keep(*{self._path(digest).parent: None for digest in new})
            for digest in new:
                written[digest] = files.write_beside(self._path(digest), blobs[digest], durable=True)
            with self._locked(shared=True):
                now = time.time_ns()
                for digest in new:
                    os.utime(written[digest], ns=(now, now))
                    inodes[digest] = os.stat(written[digest]).st_ino
                    os.replace(written[digest], self._path(digest))
                    del written[digest]
        finally:
            for left in written.values():
                left.unlink(missing_ok=True)
        self._make_durable(inodes)

    def get(self, digests: Iterable[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for digest in digests:
            path = self._path(digest)
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                self._root.check()
                continue
            check_stored_blob(digest, data, str(path))
            found[digest] = data
        return found

    def touch(self, digests: Iterable[str]) -> set[str]:
        """Touch these blobs: set their time of last use to now. Returns the digests of blobs that do not exist.

        An existing blob may have been put by another process that has not synced it yet. So the blob's folder is synced
        here, unless this process knows that the blob survives a power cut.
        """
        missing: set[str] = set()
        unsure: dict[str, int] = {}
        with self._locked(shared=True):
            now = time.time_ns()
            for digest in digests:
                path = self._path(digest)
                try:
                    os.utime(path, ns=(now, now))
                    inode = os.stat(path).st_ino
                except FileNotFoundError:
                    missing.add(digest)
                    continue
                if self._durable.get(digest) != inode:
                    unsure[digest] = inode
        if missing:
            self._root.check()
        self._make_durable(unsure)
        return missing

    def untouched(self, grace: timedelta) -> list[str]:
        """Return the digests of blobs whose time of last use is at least `grace` ago."""
        before = _before(grace)
        found: list[str] = []
        for entry in self._root.fanned(self._folder):
            with suppress(FileNotFoundError):
                if len(entry.name) == 64 and entry.stat().st_mtime_ns <= before:
                    found.append(entry.name)
        return found

    def delete(self, digests: Collection[str], grace: timedelta) -> None:
        """Delete these blobs, except those whose time of last use is less than `grace` ago. Also delete temporary files
        that are more than a day old."""
        gone: list[str] = []
        with self._locked(shared=False):
            before = _before(grace)
            for digest in digests:
                path = self._path(digest)
                with suppress(FileNotFoundError):
                    if os.stat(path).st_mtime_ns <= before:
                        path.unlink()
                        gone.append(digest)
                        self._durable.pop(digest, None)
        if len(gone) < len(digests):
            self._root.check()
        self._sync_folders(gone)
        self._sweep()

    def _sweep(self) -> None:
        """Delete the namespace's temporary files that are more than a day old: the processes that wrote them must have
        died."""
        before = time.time() - _LEFTOVER
        for entry in (*self._root.entries(self._root.space), *self._root.fanned(self._folder)):
            with suppress(FileNotFoundError):
                if entry.name.endswith(".tmp") and entry.stat().st_mtime < before:
                    os.unlink(entry.path)

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest

    def _make_durable(self, inodes: Mapping[str, int]) -> None:
        """Sync the folders of these blobs, so that their files survive a power cut, and remember that they do. `inodes`
        maps each blob's digest to the inode number of its file."""
        self._sync_folders(inodes)
        if len(self._durable) > _REMEMBERED:
            self._durable.clear()
        self._durable.update(inodes)

    def _sync_folders(self, digests: Iterable[str]) -> None:
        folders = {self._path(digest).parent: None for digest in digests}
        self._root.keep(*folders)
        for folder in folders:
            files.sync_folder(folder)

    @contextmanager
    def _locked(self, *, shared: bool) -> Iterator[None]:
        fd = self._open_lock()
        try:
            self._root.locks.lock(fd, self._lock_file, shared=shared)
            try:
                yield
            finally:
                files.unlock(fd)
        finally:
            os.close(fd)

    def _open_lock(self) -> int:
        try:
            return os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            self._root.keep(self._root.space)
            return os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)


def _before(grace: timedelta) -> int:
    return time.time_ns() - round(grace.total_seconds() * 1e9)
