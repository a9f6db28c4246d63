"""A thread back at the end of an earlier turn: its conversation, its files, or both from the same point."""

from __future__ import annotations

import msgspec

from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput
from clew.log import Checkpoint, StatusChanged, WorkspaceSnapshot
from clew.threads import Thread
from clew.threads.maintenance import upkeep
from clew.threads.ops.fork import check_turn
from clew.workspace import Restored, Workspace

__all__ = ["RewindDone", "rewind"]


class RewindDone(msgspec.Struct, frozen=True, kw_only=True):
    """What a rewind did, and what it takes to undo it."""

    thread_id: str
    turns: int
    """Turns of the thread before."""
    frames: int
    """Frames of its log before the rewind itself: `state_after` this many is what the thread was."""
    restored: Restored | None = None
    """What was done to the files."""


async def rewind(
    checkpointer: Checkpointer,
    thread_id: str,
    to_turn: int | None = None,
    *,
    files: WorkspaceSnapshot | None = None,
    workspace: Workspace | None = None,
) -> RewindDone:
    """Go back: with `to_turn`, in the conversation; with `files` and a `workspace`, in the folder.

    What the folder holds is on record before it is touched, so that the thread's log leads back to it for good. Files come
    first: where they cannot be restored the conversation stays where it is. Cut short in between, the same call again ends
    right. The thread must be free, else `ThreadBusy`. After a rewind of the conversation it is interrupted, and a resume
    goes on from there; files alone leave it as it stood.
    """
    if (files is None) != (workspace is None):
        raise InvalidInput("files go into a workspace: give both, or neither.")
    async with upkeep(checkpointer, thread_id, "rewinding") as thread:
        before = thread.checkpoint
        if to_turn is not None:
            check_turn(thread_id, before, to_turn)
        restored = None
        if files is not None and workspace is not None:
            await _keep(thread, before, workspace)
            restored = await workspace.restore(files)
        frames = thread.head.frames
        if to_turn is not None:
            await thread.rewind(to_turn)
            await thread.append(StatusChanged("interrupted", f"rewound to turn {to_turn}"))
        elif files is not None:
            await thread.append(files)
    return RewindDone(thread_id=thread_id, turns=before.turns, frames=frames, restored=restored)


async def _keep(thread: Thread, state: Checkpoint, workspace: Workspace) -> None:
    """What the folder holds, on record unless it is already."""
    if not workspace.path.is_dir() or not any(workspace.path.iterdir()):
        return
    taken = await workspace.snapshot()
    if state.workspace is None or state.workspace.digest != taken.digest:
        await thread.append(taken.entry())
