"""Restore a folder from a snapshot, without losing the user's files and without writing outside the folder."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from clew._runtime.telemetry import span
from clew.errors import ClewError, InvalidInput, MissingBlob, Unavailable
from clew.workspace.apply import apply_plan
from clew.workspace.folders import absolute, explain
from clew.workspace.manifest import Progress, Skipped, SnapshotRef
from clew.workspace.plan import RestorePlan, check_plan, make_plan
from clew.workspace.reader import Ref, Root, read_root

if TYPE_CHECKING:
    from clew.workspace.snapshot import Walked
    from clew.workspace.workspace import Workspace

__all__ = ["Restored", "restore"]

_log = logging.getLogger("clew.workspace")


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore: a snapshot of the folder from before the restore, how many files, folders and links were
    written, deleted, or given only another mode or time, and which should have been deleted but had to stay."""

    before_restore: SnapshotRef | None
    """A snapshot of the folder as it was before the restore. None if the folder was empty. gc keeps the snapshot for at
    least half a day, and for good once a thread's log names it."""
    written: int
    """The number of files, links and folders that were made or replaced."""
    touched: int
    """The number of files, links and folders of which only the mode or the time was set."""
    deleted: int
    """The number of files, links and folders that were deleted."""
    kept: tuple[Skipped, ...] = ()
    """Paths that are not in the snapshot but had to stay, with the reasons: folders that hold files that are in no
    snapshot, or where something is mounted, and the `.clewignore` of such folders."""


async def restore(
    workspace: Workspace,
    ref: Ref,
    into: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    setuid: bool = False,
) -> Restored:
    """Make the workspace's folder, or the folder `into`, equal to a snapshot. Only names that differ are touched.

    - **Nothing is lost**: a snapshot of the folder is taken first. Files that no snapshot holds (ignored, too large, special
      files, the store's own) are never replaced or removed. If one is in the way, an error is raised before anything is
      changed. If another program changes a file during the restore, an error is raised when the restore comes to that
      file.
    - **Nothing is written outside the folder**: each folder is opened from the one above, never through a link.
    - **Complete, or run again**: missing chunks, a damaged snapshot and a lack of space are found before anything is
      changed. Each name changes in one step. After an interruption, run the same restore again: it goes on from there.
    - **No rights are given away**: setuid and setgid bits, by which a program runs as its owner, are restored only with
      `setuid=True`. A folder, or a file whose content stays, keeps such a bit if the snapshot has it too.
    - `into` is created if it does not exist. If it holds files, it is treated like a workspace of its own.

    `progress` is called with the number of files written so far and the number of files to write. While one restore
    works in a folder, another raises `Unavailable`. Files are not synced to the disk: after a power cut, restore again.
    Restoring does not work on Windows, which cannot open a name relative to an open folder.
    """
    if os.open not in os.supports_dir_fd:
        raise ClewError(
            "this system cannot restore a workspace safely: it cannot open names relative to an open folder"
        )
    place = workspace if into is None else _elsewhere(workspace, absolute(into))
    try:
        return await _restore(place, ref, progress, setuid)
    except MissingBlob:
        for one in {workspace, place}:
            await one._forget()
        raise


async def _restore(place: Workspace, ref: Ref, progress: Progress | None, setuid: bool) -> Restored:
    with span("clew.restore") as current:
        target = await read_root(place.checkpointer, ref, place.limits)
        with _held(place.path) as root:
            before = await place.snapshot() if os.listdir(root) else None
            walked = place._walked if before is not None else None
            _check_same(root, place.path, walked)
            leftovers = walked.leftovers if walked is not None else ()
            plan = await _plan(place, root, before, target, leftovers, setuid)
            try:
                kept = await apply_plan(root, plan, place.checkpointer, progress)
            except BaseException as error:
                if before is not None:
                    error.add_note(f"The folder as it was before is the snapshot {before.digest}.")
                raise
        current.set(written=len(plan.files), deleted=len(plan.removals))
    _log.info("restored %s: %d files written, %d names deleted", place.path, len(plan.files), len(plan.removals))
    return Restored(
        before_restore=before,
        written=plan.made,
        touched=len(plan.touches) + len(plan.settled.keys() - set(plan.new_folders)),
        deleted=len(plan.removals) - len(kept),
        kept=kept,
    )


def _elsewhere(workspace: Workspace, into: Path) -> Workspace:
    """Return the folder `into` as a workspace of its own, with the same store, ignore patterns and limits. Returns
    `workspace` if it is the same folder. Raises `InvalidInput` if one folder lies in the other, or `into` lies in the
    store's own files."""
    there, here = os.path.realpath(into), os.path.realpath(workspace.path)
    if there == here:
        return workspace
    if _lies_in(there, here) or _lies_in(here, there):
        raise InvalidInput(
            f"{into} must not lie in the workspace {workspace.path}, nor contain it. Choose another folder."
        )
    for own in workspace.checkpointer.own_files:
        if _lies_in(there, os.path.realpath(own)):
            raise InvalidInput(f"{into} lies in {own}, which belongs to the store. Choose another folder.")
    return type(workspace)(into, workspace.checkpointer, ignore=workspace.ignore, limits=workspace.limits)


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


@contextmanager
def _held(folder: Path) -> Iterator[int]:
    """Open and lock a folder for the time of the `with` block, and give its descriptor. Creates the folder if it does
    not exist. If the block fails, a folder that was created and is empty is removed again."""
    path, made = os.path.realpath(folder), False
    try:
        if not os.path.lexists(path):
            os.makedirs(path, 0o700)
            made = True
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise explain(error, os.fsencode(path)) from error
    try:
        _lock(root, path)
        yield root
    except BaseException:
        if made:
            with suppress(OSError):
                os.rmdir(path)
        raise
    finally:
        os.close(root)


def _lock(root: int, path: str) -> None:
    """Lock a folder until its descriptor `root` is closed. Raises `Unavailable` if another restore has the lock. Does
    nothing where folders cannot be locked, as on some network file systems."""
    import fcntl  # Windows does not have it

    try:
        fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Unavailable(f"{path} is being restored by another process. Wait until that is done.") from None
    except OSError:
        _log.debug("%s cannot be locked", path)


def _check_same(root: int, path: Path, walked: Walked | None) -> None:
    """Raise `Unavailable` unless the folder that is open now is the one of which the snapshot before the restore was
    taken. `walked` identifies the folder of that snapshot. Does nothing if `walked` is None, because then no snapshot
    was taken."""
    facts = os.fstat(root)
    if walked is not None and (facts.st_dev, facts.st_ino) != (walked.dev, walked.ino):
        raise Unavailable(
            f"{path} was replaced by another folder while it was about to be restored. Nothing was changed; restore again."
        )


async def _plan(
    place: Workspace, root: int, before: SnapshotRef | None, target: Root, leftovers: tuple[bytes, ...], setuid: bool
) -> RestorePlan:
    """Make the plan of a restore in the workspace `place`, and check it against the folder, which is open as `root`,
    the free space and the store. `before` is the snapshot of the folder as it is now, `target` the one to restore.
    `leftovers` are the paths of temporary files of an interrupted restore, which are to be removed. `setuid` says
    whether setuid and setgid bits are restored. Raises `MissingBlob` if the store lacks a blob that the plan needs."""
    checkpointer, limits = place.checkpointer, place.limits
    was = await read_root(checkpointer, before, limits) if before is not None else None
    plan = await make_plan(checkpointer, was, target, limits, setuid=setuid)
    plan.leftovers = leftovers
    skipped = {found.path: found.reason for found in before.skipped} if before is not None else {}
    await asyncio.to_thread(check_plan, root, plan, _own_files(place), skipped)
    needed = {digest for work in plan.files for digest in work.item.leaves}
    if needed and (missing := await checkpointer.missing_blobs(needed)):
        raise MissingBlob(missing)
    return plan


def _own_files(place: Workspace) -> set[bytes]:
    """Return the paths of the store's own files that lie in the workspace's folder, relative to it. These files need
    not exist."""
    root = os.path.realpath(place.path)
    own = (os.path.realpath(path) for path in place.checkpointer.own_files)
    return {os.fsencode(os.path.relpath(path, root)) for path in own if _lies_in(path, root)}
