"""A folder of a user's files: taken into a store as snapshots, compared, and brought back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput
from clew.threads.trees import note_fresh
from clew.workspace import statcache
from clew.workspace.folders import absolute
from clew.workspace.ignore import Rules
from clew.workspace.manifest import Limits, Progress, SnapshotRef
from clew.workspace.statcache import StatCache

if TYPE_CHECKING:
    from clew.workspace.compare import Difference
    from clew.workspace.reader import Ref
    from clew.workspace.restore import Restored
    from clew.workspace.snapshot import Walked

__all__ = ["Workspace"]


class Workspace:
    """A plain folder, and a store that keeps its snapshots. Nothing is mounted, and nothing of Clew's appears in it.

    A snapshot holds files with their holes, hard links, symbolic links as links, empty folders, modes and times, and names
    of any bytes. It leaves out, and reports, sockets, FIFOs and devices, files over the limit, and what `.clewignore` or
    `ignore` names, both as in `.gitignore`. The store's own files are never part of it, wherever they lie. Owners, extended
    attributes and access lists are not kept.

    Files are cut into chunks, each stored once for all threads of the store. A file that has not changed since the last
    snapshot is not read again; a folder in which nothing has changed costs one digest.
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
        Rules.given(self._ignore)  # a bad pattern shows here, and not at the first snapshot
        self._known: StatCache | None = None
        self._walked: Walked | None = None
        """Of the last snapshot, for `restore`."""
        self._taking = asyncio.Lock()

    @property
    def path(self) -> Path:
        return self._path

    @property
    def checkpointer(self) -> Checkpointer:
        return self._checkpointer

    @property
    def ignore(self) -> tuple[str, ...]:
        """The patterns that were given, beside those of `.clewignore`."""
        return self._ignore

    @property
    def limits(self) -> Limits:
        return self._limits

    def __repr__(self) -> str:
        return f"Workspace({str(self._path)!r})"

    async def snapshot(self, progress: Progress | None = None) -> SnapshotRef:
        """Keep what the folder holds now. All of it is durable when this returns, so that an entry may name it.

        A folder that changes meanwhile gives a snapshot of some of it before and some after; each file is whole, or is
        reported in `skipped`. `progress` hears how many files have been read. Cancelling does no harm.
        """
        from clew.workspace.snapshot import snapshot

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
        """The store has turned out not to have what it was known to have: let the next snapshot read everything again, and
        put back what is missing."""
        async with self._taking:
            self._known = StatCache()
            await asyncio.to_thread(statcache.drop, self._path, self._checkpointer)

    async def restore(
        self, ref: Ref, into: str | os.PathLike[str] | None = None, progress: Progress | None = None
    ) -> Restored:
        """Make the folder what it was, or with `into` make another one so, and leave this one alone.

        What the folder held before is snapshotted first, as `before_restore`. Only what differs is touched; what was never
        part of a snapshot, such as ignored files, stays. Interrupted at any point, the same call again ends right.
        """
        from clew.workspace.restore import restore

        return await restore(self, ref, into, progress)

    async def diff(self, a: Ref | None, b: Ref | None = None, *, text: bool = False) -> Difference:
        """What changed from `a` to `b`; None stands for the folder as it is now. With `text`, with the lines of text files
        that differ."""
        from clew.workspace.compare import diff

        return await diff(self, a, b, text)
