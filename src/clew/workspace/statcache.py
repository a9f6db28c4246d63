"""What the last snapshot saw and made of it, kept outside the workspace: spares reading what has not changed.

Never trusted further than it can be. A file that was changed at about the time it was read might change again and look the
same, as its times are only so fine (git calls this racily clean): it is read again. So is everything after a restart of the
machine, for a power cut may take back what was written and leave the times. A cache that is damaged, of another store or
not this user's own is as good as none.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import sys
import time
from collections.abc import Collection
from pathlib import Path

import msgspec
from blake3 import blake3

from clew._runtime import files as _files
from clew.checkpointers import Checkpointer
from clew.threads.leases import boot

__all__ = ["Moment", "Record", "StatCache", "cache_folder", "drop", "is_settled", "load", "save", "split_digests"]

log = logging.getLogger("clew.workspace")

_MAGIC = b"clew workspace cache 2\n"
_FINE = 20_000_000
_WHOLE_SECONDS = 2_000_000_000
_ELSEWHERE = 60_000_000_000
_UNUSED = 30 * 86_400
_NAME = re.compile(r"[0-9a-f]{32}(\.[0-9a-f]{16}\.tmp)?")


class Moment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A moment of this boot, told by both clocks of the machine: one may be set, the other stands still in its sleep."""

    wall: float
    steady: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.monotonic())

    def age(self) -> float:
        """Seconds since then, rather too many than too few."""
        wall, steady = time.time() - self.wall, time.monotonic() - self.steady
        return max(wall, steady) if min(wall, steady) >= 0 else math.inf


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One folder: what tells whether it is still the same, and what it was made into."""

    facts: bytes
    """Msgpack of the `Fact` of each name, in order. That of a file that is to be read again has a ctime of -1."""
    digest: str
    trees: tuple[str, ...]
    nodes: bytes
    """Msgpack of the nodes, as in the tree."""
    leaves: bytes
    """The digests of the chunks of all files, in order, 32 bytes each."""
    files: int
    size: int
    """Of all files in it, together. Both without the folders in it."""

    def digests(self) -> list[str]:
        """All blobs that the folder itself takes, without those of the folders in it."""
        return [self.digest, *split_digests(self.leaves.hex())]


class StatCache(msgspec.Struct, frozen=True, array_like=True):
    """All folders of a workspace, as of one snapshot."""

    folders: dict[bytes, Record] = {}
    top: str = ""
    """The digest of that snapshot."""
    confirmed: Moment = Moment(0.0, 0.0)
    """When the store was last known to have every one of these blobs."""

    def digests(self) -> set[str]:
        """All blobs that this snapshot takes."""
        return {self.top, *(digest for record in self.folders.values() for digest in record.digests())}

    def without(self, missing: Collection[str]) -> StatCache:
        """Forget the folders that need any of these blobs."""
        gone = frozenset(missing)
        kept = {path: record for path, record in self.folders.items() if gone.isdisjoint(record.digests())}
        return StatCache(kept, confirmed=self.confirmed)


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    boot: str
    whose: bytes
    cache: StatCache


def split_digests(text: str) -> list[str]:
    """Digests that stand one after the other."""
    return [text[place : place + 64] for place in range(0, len(text), 64)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


def is_settled(mtime: int, ctime: int, began: int, *, elsewhere: bool = False) -> bool:
    """Whether a file with these times, of which reading began at that moment (all in nanoseconds), must show another time
    when it is changed thereafter. `elsewhere`: another machine's clock sets the times, or may do so."""
    fineness = _FINE if mtime % 1_000_000_000 and ctime % 1_000_000_000 else _WHOLE_SECONDS
    return max(mtime, ctime) + (_ELSEWHERE if elsewhere else fineness) <= began


def cache_folder() -> Path | None:
    """Where caches are kept on this machine; None if there is no such place."""
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
    """What is known of this folder in this store; nothing, if there is no sound cache of this boot."""
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
    """Keep this for the next process, whole or not at all. Where it cannot be kept the next one reads more."""
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
    """Forget what is known of this folder in this store, for every process that has not read it yet."""
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
    """Remove caches that nobody has used for a month, and what was left half written."""
    now = time.time()
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            most = 3_600 if path.suffix == ".tmp" else _UNUSED
            if _NAME.fullmatch(path.name) and now - path.stat().st_mtime > most:
                path.unlink()
