"""The cache of what the last snapshot saw, kept outside the workspace, so that unchanged files are not read again.

It is trusted only where that is safe. A file that was changed at about the time it was read might change again and keep its
timestamps, because timestamps are coarse (git calls such a file racily clean). So it is read again. After a restart of the
machine everything is read again, because a power cut may undo writes and keep the timestamps. A cache that is damaged,
belongs to another store or is not owned by this user is ignored.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Collection
from pathlib import Path

import msgspec
from blake3 import blake3

from clew._runtime import files as _files
from clew._runtime.clock import Moment
from clew.checkpointers import Checkpointer
from clew.threads.leases import boot

__all__ = ["Record", "StatCache", "cache_folder", "drop", "is_settled", "load", "save", "split_digests"]

log = logging.getLogger("clew.workspace")

_MAGIC = b"clew workspace cache 2\n"
_FINE = 20_000_000
_WHOLE_SECONDS = 2_000_000_000
_ELSEWHERE = 60_000_000_000
_UNUSED = 30 * 86_400
_NAME = re.compile(r"[0-9a-f]{32}(\.[0-9a-f]{16}\.tmp)?")


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One folder in the cache that lets a snapshot skip unchanged files. It holds the facts (such as names, sizes and
    times) that show whether the folder has changed, and how the last snapshot stored the folder."""

    facts: bytes
    """The facts (`Fact`) of each name in the folder, sorted by name, as msgpack. The ctime of a file that must be read
    again is -1."""
    digest: str
    trees: tuple[str, ...]
    nodes: bytes
    """The nodes (names with what they are) that the snapshot lists for the folder, as msgpack. For an encrypted store,
    inline content and link targets are left out."""
    leaves: bytes
    """The digests of the chunks of all files in the folder, joined, 32 bytes each."""
    files: int
    """The number of files directly in the folder."""
    size: int
    """The total size in bytes of the files directly in the folder."""

    def digests(self) -> list[str]:
        """Return the digests of the blobs that hold this folder: its tree, which lists its content, and the chunks
        (parts) of its files. Folders in it are not included."""
        return [self.digest, *split_digests(self.leaves.hex())]


class StatCache(msgspec.Struct, frozen=True, array_like=True):
    """The content of the cache by which a snapshot knows which files have not changed: what the last snapshot of a
    workspace saw and stored, with a record for each folder."""

    folders: dict[bytes, Record] = {}
    top: str = ""
    """The digest of the snapshot that the cache describes."""
    confirmed: Moment = Moment(0.0, 0.0)
    """When the store was last known to have all blobs of the snapshot that the cache describes."""

    def digests(self) -> set[str]:
        """Return the digests of all blobs of the snapshot that this cache describes."""
        return {self.top, *(digest for record in self.folders.values() for digest in record.digests())}

    def without(self, missing: Collection[str]) -> StatCache:
        """Return a copy of this cache of the last snapshot, without the folders that need any of the blobs in
        `missing`. The copy has no digest of a snapshot, because it no longer describes a whole one."""
        gone = frozenset(missing)
        kept = {path: record for path, record in self.folders.items() if gone.isdisjoint(record.digests())}
        return StatCache(kept, confirmed=self.confirmed)


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """The content of the file in which a workspace's cache is saved. `cache` says what the last snapshot saw of each
    file, so that unchanged files are not read again. `boot` identifies the run of the machine, from start to shutdown,
    for which it is valid. `whose` identifies the folder, the store and the encryption key that it belongs to."""

    boot: str
    whose: bytes
    cache: StatCache


def split_digests(text: str) -> list[str]:
    """Split a text of joined digests, of 64 characters each, into a list."""
    return [text[place : place + 64] for place in range(0, len(text), 64)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


def is_settled(mtime: int, ctime: int, began: int, *, elsewhere: bool = False) -> bool:
    """Return whether any later change of a file is sure to change its times. If so, a later snapshot may take the file
    as unchanged as long as its times are the same.

    `mtime` and `ctime` are the times of the file, and `began` is when reading it began, all in nanoseconds since 1970.
    `elsewhere` says that another machine's clock may set the file's times, as on a network file system.
    """
    fineness = _FINE if mtime % 1_000_000_000 and ctime % 1_000_000_000 else _WHOLE_SECONDS
    return max(mtime, ctime) + (_ELSEWHERE if elsewhere else fineness) <= began


def cache_folder() -> Path | None:
    """Return the folder that holds the caches of all workspaces on this machine, or None if the user has no home
    folder. A cache says what the last snapshot of a workspace saw. The folder may not exist."""
    if named := os.environ.get("CLEW_CACHE"):
        return Path(os.path.abspath(named)) / "workspaces"
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            named = os.environ.get("XDG_CACHE_HOME", "")
            base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "clew" / "workspaces"


def load(root: str, checkpointer: Checkpointer) -> StatCache:
    """Load the cache of what the last snapshot of a workspace saw. `root` is the workspace's folder, and `checkpointer`
    the store of the snapshot. Returns an empty cache if there is none, or if it is damaged, belongs to another user,
    store or encryption key, or is from before the machine was restarted."""
    path = _path(root, checkpointer)
    if path is None or not boot():
        return StatCache()
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if sys.platform != "win32" and (facts.st_uid != os.geteuid() or facts.st_mode & 0o077):
                return StatCache()
            data = file.read()
    except OSError:
        return StatCache()
    start = len(_MAGIC) + 32
    if not data.startswith(_MAGIC) or blake3(memoryview(data)[start:]).digest() != data[len(_MAGIC) : start]:
        return StatCache()
    try:
        stored = _decode(memoryview(data)[start:])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return StatCache()
    if stored.boot != boot() or stored.whose != _whose(root, checkpointer):
        return StatCache()
    return stored.cache


def save(root: str, checkpointer: Checkpointer, cache: StatCache) -> None:
    """Save `cache`, which says what the last snapshot of a workspace saw, in a file for the next process. `root` is the
    workspace's folder, and `checkpointer` the store that has the snapshot. The file is written whole or not at all. A
    failure raises no error: the next snapshot then only has to read more files."""
    path = _path(root, checkpointer)
    if path is None or not boot():
        return
    body = _encode(_Stored(boot(), _whose(root, checkpointer), cache))
    temporary = None
    try:
        if not path.exists():
            _files.make_private_folder(path.parent)
            _sweep(path.parent)
        temporary = _files.write_beside(path, _MAGIC + blake3(body).digest() + body, durable=False)
        os.replace(temporary, path)
    except OSError as error:
        log.debug("the cache of the workspace %s cannot be kept: %s", root, error)
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def drop(root: Path, checkpointer: Checkpointer) -> None:
    """Delete the cache that says what the last snapshot of the folder `root` in this store saw. The next snapshot then
    reads all files. Processes that have already loaded the cache keep using it. If it cannot be deleted, a warning is
    logged."""
    path = _path(os.path.realpath(root), checkpointer)
    if path is None:
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("the cache of the workspace %s cannot be dropped: %s. Delete %s.", root, error, path)


def _whose(root: str, checkpointer: Checkpointer) -> bytes:
    key = "" if checkpointer.keys is None else checkpointer.keys.current
    return b"\0".join(map(os.fsencode, (root, checkpointer.place, key)))


def _path(root: str, checkpointer: Checkpointer) -> Path | None:
    folder = cache_folder()
    if folder is None or not checkpointer.place:
        return None
    return folder / blake3(_whose(root, checkpointer)).hexdigest(16)


def _sweep(folder: Path) -> None:
    """Remove the caches of workspaces in this folder that were last written more than 30 days ago, and temporary files
    older than an hour."""
    now = time.time()
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            most = 3_600 if path.suffix == ".tmp" else _UNUSED
            if _NAME.fullmatch(path.name) and now - path.stat().st_mtime > most:
                path.unlink()
