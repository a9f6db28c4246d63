"""The queue of the workers in a file store: a folder with a marker for each thread that may be in it.

A marker is an empty file, named by the thread's key. It is on the disk before the append that puts the thread into the
queue, and it is removed after the append that takes the thread out. So every queued thread has a marker. A marker alone
says nothing: a crash can leave one behind. A listing reads the markers, and then the heads of these threads, which it
believes. Both steps of an append are made while the thread's file is locked exclusively, and so is the removal of a
marker that was left behind.
"""

from __future__ import annotations

import os
from contextlib import suppress

from clew._runtime import files
from clew.checkpointers.files.root import QUEUE_FORMAT, Root

__all__ = ["QueueMarkers"]

_KEY = 64


class QueueMarkers:
    """The markers of one namespace of a file store. A marker says that a thread may be in the queue of the workers.
    Markers are added and removed only by the holder of the exclusive lock on the thread's file."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._folder = root.space / "due"

    def threads(self) -> list[str]:
        """Return the keys (hashes of the ids) of all threads that have a marker."""
        return [entry.name for entry in self._root.entries(self._folder) if len(entry.name) == _KEY]

    def has(self, key: str) -> bool:
        return os.path.exists(self._folder / key)

    def add(self, key: str) -> None:
        """Create the marker of the thread with this key (the hash of its id), so that it survives a power cut. The
        first marker of a store raises the store's format: an older Clew would not keep the queue right."""
        self._root.raise_format(QUEUE_FORMAT)
        self._root.keep(self._folder)
        os.close(os.open(self._folder / key, os.O_WRONLY | os.O_CREAT, 0o600))
        files.sync_folder(self._folder)

    def remove(self, key: str) -> None:
        """Remove the marker of the thread with this key (the hash of its id). If that fails, a listing tries again
        later."""
        with suppress(OSError):
            os.unlink(self._folder / key)
