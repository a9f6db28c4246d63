"""The blobs of one namespace: a file each, named by its digest, whose time of change says when it was last touched.

Whoever touches blobs or gives a new one its name holds the namespace's lock shared, whoever deletes holds it exclusive:
a blob is never removed between the look at its time and its end. Syncs are made outside the lock, so that neither
waits for a disk.
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
"""Seconds after which a temporary file belongs to nobody: its writer died."""
_REMEMBERED = 100_000


class BlobFiles:
    def __init__(self, root: Root) -> None:
        self._root = root
        self._folder = root.space / "blobs"
        self._lock_file = root.space / "blobs.lock"
        self._durable: dict[str, int] = {}

    def put(self, blobs: Mapping[str, bytes]) -> None:
        missing = self.touch(blobs)
        new = [
            digest for digest in blobs if digest in missing
        ]  # in the order given: what a tree points at comes before it
        if not new:
            return
        written: dict[str, Path] = {}
        inodes: dict[str, int] = {}
        try:
            self._root.keep(*{self._path(digest).parent for digest in new})
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
        """Touch those of these blobs that are there, and return those that are not.

        One that is there is made durable unless this process knows it is: another may have put it a moment ago.
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
        before = _before(grace)
        found: list[str] = []
        for entry in self._root.fanned(self._folder):
            with suppress(FileNotFoundError):
                if len(entry.name) == 64 and entry.stat().st_mtime_ns <= before:
                    found.append(entry.name)
        return found

    def delete(self, digests: Collection[str], grace: timedelta) -> None:
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
        """Remove what writers that died have left half written."""
        before = time.time() - _LEFTOVER
        for entry in (*self._root.entries(self._root.space), *self._root.fanned(self._folder)):
            with suppress(FileNotFoundError):
                if entry.name.endswith(".tmp") and entry.stat().st_mtime < before:
                    os.unlink(entry.path)

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest

    def _make_durable(self, inodes: Mapping[str, int]) -> None:
        """Sync the names of these blobs, and remember that they are."""
        self._sync_folders(inodes)
        if len(self._durable) > _REMEMBERED:
            self._durable.clear()
        self._durable.update(inodes)

    def _sync_folders(self, digests: Iterable[str]) -> None:
        folders = {self._path(digest).parent for digest in digests}
        self._root.keep(*folders)
        for folder in folders:
            files.sync_folder(folder)

    @contextmanager
    def _locked(self, *, shared: bool) -> Iterator[None]:
        fd = self._open_lock()
        try:
            files.lock(fd, self._lock_file, shared=shared)
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
