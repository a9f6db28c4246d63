"""Restoring: making a folder exactly what a snapshot says, so that nothing of its user's is lost and nothing leaves it."""

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
from clew.workspace.plan import Plan, check_plan, make_plan
from clew.workspace.reader import Ref, Root, read_root

if TYPE_CHECKING:
    from clew.workspace.snapshot import Walked
    from clew.workspace.workspace import Workspace

__all__ = ["Restored", "restore"]

_log = logging.getLogger("clew.workspace")


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did."""

    before_restore: SnapshotRef | None
    """The folder as it was, to go back to; None if there was nothing in it. It is safe for half a day, half of gc's grace,
    and for good once a thread's log names it."""
    written: int
    """Files, links and folders that were made or replaced."""
    touched: int
    """Files, links and folders of which only the mode or the time was set."""
    deleted: int
    kept: tuple[Skipped, ...] = ()
    """Folders that are not in the snapshot and had to stay, because of what they hold that is in none or because something
    is mounted there, and each `.clewignore` in them."""


async def restore(
    workspace: Workspace,
    ref: Ref,
    into: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Make the workspace, or the folder `into`, what the snapshot says. Only what differs is touched.

    - **Nothing is lost**: the folder is snapshotted first. What no snapshot holds (ignored, too large, special files, the
      store's own) is never replaced or removed: if it is in the way, that is an error before anything is changed. So is a
      file that somebody changes meanwhile, when its turn comes.
    - **Nothing leaves the folder**: folders are opened one from the other and never through a link.
    - **Whole or again**: missing chunks, a snapshot that does not add up and a lack of space are found before anything is
      changed. Each name changes in one step. Interrupted or cancelled, run it again: it goes on from there.
    - `into` is made if it is not there. One that holds something is treated like a workspace of its own.

    One restore at a time works in a folder. Files are not synced: after a power cut, restore again. Not on Windows, which
    has no way to open a name from a folder's descriptor.
    """
    if os.open not in os.supports_dir_fd:
        raise ClewError("this system cannot restore a workspace safely: it has no file names relative to open folders")
    place = workspace if into is None else _elsewhere(workspace, absolute(into))
    try:
        return await _restore(place, ref, progress)
    except MissingBlob:
        for one in {workspace, place}:
            await one._forget()
        raise


async def _restore(place: Workspace, ref: Ref, progress: Progress | None) -> Restored:
    with span("clew.restore") as current:
        target = await read_root(place.checkpointer, ref, place.limits)
        with _held(place.path) as root:
            before = await place.snapshot() if os.listdir(root) else None
            walked = place._walked if before is not None else None
            _check_same(root, place.path, walked)
            plan = await _plan(place, root, before, target, walked.leftovers if walked is not None else ())
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
    """The folder `into` as a workspace of its own, in the same store and under the same rules."""
    there, here = os.path.realpath(into), os.path.realpath(workspace.path)
    if there == here:
        return workspace
    if _lies_in(there, here) or _lies_in(here, there):
        raise InvalidInput(f"{into} and the workspace {workspace.path} lie in one another. Choose another folder.")
    for own in workspace.checkpointer.own_files:
        if _lies_in(there, os.path.realpath(own)):
            raise InvalidInput(f"{into} lies in {own}, which is the store's own. Choose another folder.")
    return type(workspace)(into, workspace.checkpointer, ignore=workspace.ignore, limits=workspace.limits)


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


@contextmanager
def _held(folder: Path) -> Iterator[int]:
    """A descriptor of the folder, which is made if it is not there. Nobody else restores there meanwhile."""
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
    """Closing the descriptor unlocks it. Where folders cannot be locked, as on some networks, it goes without."""
    import fcntl

    try:
        fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Unavailable(f"{path} is being restored by somebody else. Wait until that is done.") from None
    except OSError:
        _log.debug("%s cannot be locked", path)


def _check_same(root: int, path: Path, walked: Walked | None) -> None:
    """What was snapshotted is what will be changed."""
    facts = os.fstat(root)
    if walked is not None and (facts.st_dev, facts.st_ino) != (walked.dev, walked.ino):
        raise Unavailable(
            f"{path} was replaced by another folder while it was about to be restored. Nothing was changed; restore again."
        )


async def _plan(
    place: Workspace, root: int, before: SnapshotRef | None, target: Root, leftovers: tuple[bytes, ...]
) -> Plan:
    """What there is to do, with all that can be known to stand against it found out."""
    checkpointer, limits = place.checkpointer, place.limits
    was = await read_root(checkpointer, before, limits) if before is not None else None
    plan = await make_plan(checkpointer, was, target, limits)
    plan.leftovers = leftovers
    skipped = {found.path: found.reason for found in before.skipped} if before is not None else {}
    await asyncio.to_thread(check_plan, root, plan, _own_files(place), skipped)
    needed = {digest for work in plan.files for digest in work.item.leaves}
    if needed and (missing := await checkpointer.missing_blobs(needed)):
        raise MissingBlob(missing)
    return plan


def _own_files(place: Workspace) -> set[bytes]:
    """The store's own files that lie in the folder, or would if they were there, by their paths from it."""
    root = os.path.realpath(place.path)
    own = (os.path.realpath(path) for path in place.checkpointer.own_files)
    return {os.fsencode(os.path.relpath(path, root)) for path in own if _lies_in(path, root)}
