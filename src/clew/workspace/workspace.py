"""The public `Workspace`: takes snapshots of a user's folder, compares them and restores them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput
from clew.threads.trees import note_fresh
from clew.workspace import statcache
from clew.workspace.compare import Difference, diff
from clew.workspace.folders import absolute
from clew.workspace.ignore import Rules
from clew.workspace.manifest import Limits, Progress, SnapshotRef
from clew.workspace.reader import Ref
from clew.workspace.restore import Restored, restore
from clew.workspace.snapshot import Walked, snapshot
from clew.workspace.statcache import StatCache

__all__ = ["Workspace"]


class Workspace:
    """A folder of files, and a store that keeps its snapshots. Nothing is mounted, and Clew adds no files of its own to
    the folder.

    A snapshot holds files with their holes, hard links, symbolic links as links, empty folders, modes and times, and
    names of any bytes. It leaves out and reports sockets, FIFOs and devices, files over the limit, and names that
    `.clewignore` or `ignore` lists in the syntax of `.gitignore`. The store's own files are never part of it, wherever
    they lie. Owners, extended attributes and access lists are not kept.

    Files are cut into chunks, and each chunk is stored once for all threads of the store. A file that has not changed
    since the last snapshot is not read again. For a folder in which nothing has changed, nothing new is stored: the new
    snapshot refers to what the last one stored.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        checkpointer: Checkpointer,
        *,
        ignore: Iterable[str] | str = (),
        limits: Limits | None = None,
    ) -> None:
        self._path = absolute(path)
        self._checkpointer = checkpointer
        self._ignore = tuple(ignore.splitlines() if isinstance(ignore, str) else ignore)
        self._limits = limits or Limits()
        if min(self._limits.file_bytes, self._limits.names) < 0:
            raise InvalidInput(f"{self._limits} has a limit below zero. For no limit, give a very high one.")
        Rules.given(self._ignore)  # so that a bad pattern is refused here, and not at the first snapshot
        self._known: StatCache | None = None
        self._walked: Walked | None = None
        """What `restore` needs to know from the walk that the last snapshot made over the folder. None before the first
        snapshot."""
        self._taking = asyncio.Lock()

    @property
    def path(self) -> Path:
        return self._path

    @property
    def checkpointer(self) -> Checkpointer:
        return self._checkpointer

    @property
    def ignore(self) -> tuple[str, ...]:
        """The patterns that were given as `ignore`, without those of `.clewignore` files."""
        return self._ignore

    @property
    def limits(self) -> Limits:
        return self._limits

    def __repr__(self) -> str:
        return f"Workspace({str(self._path)!r})"

    async def snapshot(self, progress: Progress | None = None) -> SnapshotRef:
        """Take a snapshot of the folder. All of it is durable when this returns, so that an entry of a log may name it.

        If the folder changes meanwhile, the snapshot may hold some files from before the change and some from after.
        Each file is whole, or is reported in `skipped` of the result. `progress` is called with the number of files
        read so far and the number of files to read. Cancelling does no harm.
        """
        async with self._taking:
            ref, self._known, self._walked = await snapshot(
                self._path,
                self._checkpointer,
                limits=self._limits,
                ignore=self._ignore,
                known=self._known,
                progress=progress,
            )
        note_fresh(self._checkpointer, ref.digest)
        return ref

    async def _forget(self) -> None:
        """Forget the cache of the last snapshot, by which unchanged files are not read again. This is called after the
        store turned out to have lost blobs: the next snapshot then reads everything again and stores what is missing.
        """
        async with self._taking:
            self._known = StatCache()
            await asyncio.to_thread(statcache.drop, self._path, self._checkpointer)

    async def restore(
        self,
        ref: Ref,
        into: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        *,
        setuid: bool = False,
    ) -> Restored:
        """Make the folder equal to a snapshot. With `into`, make that folder equal to the snapshot instead and leave
        the workspace's own folder alone.

        A snapshot of the folder to change is taken first; the result has it as `before_restore`. Only names that differ
        are touched. Files that were never part of a snapshot, such as ignored ones, stay. After an interruption at any
        point, make the same call again: it completes the restore. `progress` is called with the number of files
        written so far and the number of files to write.

        Setuid and setgid bits are not restored, because with them a program runs with its owner's rights, no matter who
        starts it. For a snapshot that you trust, pass `setuid=True`.
        """
        return await restore(self, ref, into, progress, setuid=setuid)

    async def diff(self, a: Ref | None, b: Ref | None = None, *, text: bool = False) -> Difference:
        """Return what changed from snapshot `a` to snapshot `b`. If one is None, the folder as it is now takes its
        place: a snapshot of it is taken first. With `text`, changes of text files come with a unified diff."""
        return await diff(self, a, b, text)
