"""Lists the heads (small summaries) of the threads of one namespace without reading every thread's file.

Each listing compares size, times and inode of every thread's file with the values remembered from an earlier listing.
Only from files that differ, it reads the last record (each append writes one, with the head). The remembered values and
heads are also written to a cache file for the next process. If that file is lost, damaged or out of date, listings are
still right and only take longer.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

import msgspec
from blake3 import blake3

from clew._runtime import files
from clew._runtime.aio import PutOff
from clew.checkpointers.files.log import Log
from clew.checkpointers.files.root import Root
from clew.checkpointers.files.threads import ThreadFiles
from clew.checkpointers.heads import Head
from clew.errors import Corrupt

__all__ = ["HeadFiles"]

_MAGIC = b"clew heads 2\n"
"""The bytes with which the cache file begins. Older versions wrote heads without their place in the queue, under another
number."""
_SETTLED = 2_000_000_000
"""A file that changed less than this many nanoseconds ago may change again and keep the same times, because some file
systems store times in steps of up to two seconds."""
_WORTH_KEEPING = 32
"""The cache file is written again only after at least this many heads were read from threads' files since the last
time."""

Stamp = tuple[int, int, int, int]
"""Identifies one state of a file: its inode, size, time of modification and time of change."""


class _Known(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of a thread's file: its head, and its stamp (inode, size and times) when the head was read.
    The head is None if the file held no complete append. The stamp is None if the file had changed too recently for the
    stamp to be reliable."""

    stamp: Stamp | None
    head: Head | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, _Known]).decode


class HeadFiles:
    """Lists the heads (small summaries of threads) of one namespace, a separate part of a file store. The result is
    exact even if other processes have appended since the last listing."""

    def __init__(self, root: Root, threads: ThreadFiles) -> None:
        self._root = root
        self._threads = threads
        self._file = root.space / "heads.cache"
        self._known: dict[str, _Known] | None = None
        self._learned = 0
        self._queued: dict[str, _Known] = {}

    def all(self) -> tuple[list[Head], list[Corrupt]]:
        """Return the heads of all sound threads, in no particular order, and an error for each damaged thread."""
        before = self._load() if self._known is None else self._known
        known: dict[str, _Known] = {}
        damaged: list[Corrupt] = []
        learned = 0
        for key, stamp in self._files():
            entry = before.get(key)
            if entry is None or entry.stamp != stamp:
                try:
                    entry = self._read(key, entry)
                except Corrupt as error:
                    damaged.append(error)
                    continue
                except PutOff:  # a thread is locked: keep what was learned for when this is called again
                    self._known = {**before, **known}
                    self._learned += learned
                    raise
                learned += entry is not None and entry.stamp is not None
            if entry is not None:
                known[key] = entry
        self._known = known
        self._keep(known, learned)
        return [entry.head for entry in known.values() if entry.head is not None], damaged

    def queued(self) -> tuple[list[Head], list[Corrupt]]:
        """Return the heads of all sound threads in the queue of the workers, in no particular order, and an error for
        each damaged thread that may be in it. Looks only at threads that have a marker. Removes markers of threads that
        are not in the queue any more."""
        found: dict[str, _Known] = {}
        damaged: list[Corrupt] = []
        for key in self._threads.queue.threads():
            entry = self._queued.get(key)
            try:
                if entry is None or entry.stamp is None or entry.stamp != self._stamp_of(key):
                    entry = self._read(key, entry)
            except Corrupt as error:
                damaged.append(error)
                continue
            except PutOff:  # a thread is locked: keep what was learned for when this is called again
                self._queued |= found
                raise
            if entry is None or entry.head is None or entry.head.due is None:
                self._threads.clear_marker(key)
            else:
                found[key] = entry
        self._queued = found
        return [entry.head for entry in found.values() if entry.head is not None], damaged

    def _stamp_of(self, key: str) -> Stamp | None:
        try:
            return _stamp(os.stat(self._threads.path(key)))
        except FileNotFoundError:
            return None

    def _files(self) -> list[tuple[str, Stamp]]:
        found: list[tuple[str, Stamp]] = []
        for entry in self._root.fanned(self._threads.folder):
            with suppress(FileNotFoundError):
                if len(entry.name) == 64:
                    found.append((entry.name, _stamp(entry.stat())))
        self._root.check()
        return found

    def _read(self, key: str, before: _Known | None) -> _Known | None:
        """Read the head of a thread from its file. `key` is the hash of the thread's id. `before` is what was
        remembered of the file; it serves only to name the thread in errors. Returns None if the file was deleted
        meanwhile.

        The result has no stamp (inode, size and times) if the file changed within the last two seconds: the file could
        change again and have the same stamp.
        """
        with self._threads.opened(key, shared=True) as fd:
            if fd is None:
                return None
            name = f"thread {before.head.thread_id!r}" if before is not None and before.head is not None else "a thread"
            log = Log(self._threads.path(key), key, name)
            log.refresh(fd)
            stamp = _stamp(os.fstat(fd))
            settled = time.time_ns() - max(stamp[2:]) > _SETTLED
            return _Known(stamp if settled else None, log.head())

    def _load(self) -> dict[str, _Known]:
        try:
            data = self._file.read_bytes()
            start = len(_MAGIC) + 16
            if data[:start] == _MAGIC + blake3(data[start:]).digest(16):
                return _decode(data[start:])
        except (OSError, msgspec.MsgspecError):
            pass
        return {}

    def _keep(self, known: dict[str, _Known], learned: int) -> None:
        """Write `known`, the remembered heads, to the cache file, unless too little is new: since the file was last
        written, fewer than 32 heads, or less than a sixteenth of those in `known`, were read from threads' own files.
        `learned` is how many of them the current call of `all` has read. Errors of the file system are ignored."""
        self._learned += learned
        if self._learned < max(_WORTH_KEEPING, len(known) // 16):
            return
        data = _encode(known)
        with suppress(OSError):
            os.replace(
                files.write_beside(self._file, _MAGIC + blake3(data).digest(16) + data, durable=False), self._file
            )
        self._learned = 0


def _stamp(facts: os.stat_result) -> Stamp:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
