"""Creates and checks the folder of a file store, and the folders of its namespaces in it, so that they survive a power
cut. This is what the folder holds (a blake3 is a hash in hex, `ab` are its first two letters):

clew-store              "clew-store 1": marks the folder as a store, and names its format
clew-store.reserve      keeps some disk space, which is freed if a thread is to be deleted on a full disk
<blake3 of namespace>/
    namespace           the name of the namespace, for people
    threads/ab/<blake3 of id>   the log of a thread, with its head
    blobs/ab/<digest>   a blob
    blobs.lock          locked while a blob is put in place, touched or deleted
    heads.cache         heads of threads from the last listing, to make the next one faster
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from blake3 import blake3

from clew._runtime import files
from clew.checkpointers.files.locks import FileLocks
from clew.errors import ClewError, Corrupt, InvalidInput, NewerFormat, Unavailable

__all__ = ["QUEUE_FORMAT", "Root"]

MARKER = "clew-store"
FORMAT = 2
"""The newest format that this version of Clew can read."""
FIRST_FORMAT, QUEUE_FORMAT = 1, 2
"""A store has the first format until its first thread is queued for a worker. From then on a Clew that does not know the
queue must not write to it, because it would write heads without their time."""
RESERVE = 64 * 1024
"""Bytes of disk space that are held in reserve, so that a thread can be deleted on a full disk. Before the deletion,
the thread's lease is taken, which appends to the thread's file."""
_LEFT_BY_SYSTEMS = {".DS_Store", "lost+found"}


class Root:
    """The folder of a file store. Its attribute `space` is a folder in it: that of one namespace, a separate part of
    the store."""

    def __init__(self, path: Path, namespace: str, locks: FileLocks) -> None:
        self.path = path
        self.locks = locks
        self.space = path / blake3(namespace.encode()).hexdigest()
        self._namespace = namespace
        self._marker = path / MARKER
        self._opening = threading.Lock()
        self._opened = False
        self._format = FIRST_FORMAT
        self._kept: set[Path] = set()
        self.reserve = files.Reserve(path / f"{MARKER}.reserve", RESERVE)

    def open(self) -> None:
        """Create the store in a new or empty folder, or check that the folder is a store. Raises `InvalidInput` if it
        is neither. Only the first call does anything: a store that vanishes later is not created again."""
        if self._opened:
            return
        with self._opening:
            try:
                self._open()
            except (OSError, MemoryError) as error:
                raise self.explain(error) from error
            self._opened = True

    def _open(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            if (special := files.special_kind(self.path)) is not None:
                raise InvalidInput(f"{self.path} is a {special}. A file store is a folder: name another path.")
            raise InvalidInput(
                f"{self.path} is a file. A file store is a folder; for one file write sqlite:///{self.path}"
            )
        files.make_private_folder(self.path)
        try:
            self._format = self._read_marker()
        except FileNotFoundError:
            self._mark()

    def _read_marker(self) -> int:
        """Return the format that the store's marker file says. Raises `Corrupt` if it says none, and `NewerFormat` if a
        later version of Clew made the store."""
        name, _, version = self._marker.read_bytes().decode("ascii", "replace").strip().partition(" ")
        if name != MARKER or not version.isdigit():
            raise Corrupt(f"{self._marker} should say '{MARKER}' and a version, and does not. Restore it from a copy.")
        if int(version) > FORMAT:
            raise NewerFormat(f"the file store {self.path}", int(version), FORMAT)
        return int(version)

    def _mark(self) -> None:
        """Make an empty folder a store by writing its marker file. Raises `InvalidInput` if the folder has other
        content."""
        strange = sorted(
            name for name in os.listdir(self.path) if name not in _LEFT_BY_SYSTEMS and not name.startswith(MARKER)
        )
        if strange and self._marker.exists():  # another process has made it a store meanwhile
            self._open()
            return
        if strange:
            raise InvalidInput(
                f"{self.path} is not a Clew store and not empty (it holds {strange[0]!r}). Choose an empty or a new folder."
            )
        files.sync_path(self.path)
        self._write_marker(FIRST_FORMAT)

    def _write_marker(self, version: int) -> None:
        os.replace(files.write_beside(self._marker, f"{MARKER} {version}\n".encode(), durable=True), self._marker)
        files.sync_folder(self.path)

    def raise_format(self, version: int) -> None:
        """Make the store one of at least this format, so that an older Clew refuses to open it from now on."""
        if self._format < version:
            self.check()
            if self._read_marker() < version:
                self._write_marker(version)
            self._format = version

    def check(self) -> None:
        """Raise `Unavailable` if the store's marker file is gone. Called when some file is missing: on an unmounted
        disk every file is missing, and that must not look like a thread that does not exist."""
        try:
            os.stat(self._marker)
        except FileNotFoundError:
            raise Unavailable(
                f"{self.path} is no longer there, or no longer a Clew store. Mount or restore it, then try again."
            ) from None

    def keep(self, *folders: Path) -> None:
        """Create these folders of the namespace, and their parents, so that they survive a power cut. Folders with the
        same parent share one sync.

        A folder that exists is synced too, the first time it is given: another process may have created it just before
        and not synced yet.
        """
        fresh = [folder for folder in folders if folder not in self._kept or not folder.is_dir()]
        parents = {folder.parent: None for folder in fresh}
        for parent in parents:
            if parent == self.path:
                self.check()
                if (
                    not self.space.is_dir()
                ):  # sync the marker first: a folder that has a namespace and no marker is refused as no store
                    files.sync_folder(parent)
            else:
                self.keep(parent)
        for folder in fresh:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        for parent in parents:
            files.sync_folder(parent)
        self._kept.update(fresh)
        if self.space in fresh:
            self._name_space()
            self.reserve.hold()

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """Return the files and folders in this folder, or an empty list if it does not exist yet. Raises `Unavailable`
        if the whole store is gone."""
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except FileNotFoundError:
            self.check()
            return []

    def fanned(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        """Yield what is in the subfolders of `folder` whose names have two characters. Files are stored in such
        subfolders by the first two characters of their names."""
        for fan in self.entries(folder):
            if len(fan.name) == 2:
                yield from self.entries(Path(fan.path))

    def explain(self, error: OSError | MemoryError, path: str | None = None) -> ClewError:
        """Return the `ClewError` for an `OSError` or a `MemoryError`. Its text names the file that the `OSError` names,
        else `path`, else the store's folder."""
        named = getattr(error, "filename", None)
        named = named if isinstance(named, str | os.PathLike) else None
        return files.explain(error, Path(named or path or self.path))

    def _name_space(self) -> None:
        name = self.space / "namespace"
        if not name.exists():
            os.replace(files.write_beside(name, msgspec.json.encode(self._namespace) + b"\n", durable=False), name)
