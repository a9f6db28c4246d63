"""Take a thread back to the end of an earlier turn: its conversation, its files, or both."""

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
    """What a rewind did, and what is needed to undo it: how many turns and frames the thread had before."""

    thread_id: str
    turns: int
    """How many turns the thread's conversation had before the rewind."""
    frames: int
    """How many frames the log had just before the conversation was rewound. The state after this many frames is the one
    that an undo returns to."""
    restored: Restored | None = None
    """What was done to the files; None if no files were restored."""


async def rewind(
    checkpointer: Checkpointer,
    thread_id: str,
    to_turn: int | None = None,
    *,
    files: WorkspaceSnapshot | None = None,
    workspace: Workspace | None = None,
) -> RewindDone:
    """Rewind a thread: with `to_turn`, its conversation to the end of that turn; with `files`, a snapshot, the files of
    the `workspace`.

    A snapshot of the folder is recorded before its files are changed, so that they can be brought back. The files are
    restored first: if that fails, the conversation is not rewound. If the process stops in between, the same call again
    completes the rewind.

    Raises `ThreadBusy` if another process holds the thread, and `InvalidInput` if only one of `files` and `workspace`
    is given. After a rewind of the conversation the thread's status is `interrupted`, and a resume goes on from that
    turn. A rewind of the files alone leaves the status as it was.
    """
    if (files is None) != (workspace is None):
        raise InvalidInput("files= and workspace= belong together: give both, or neither.")
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
    """Record a snapshot of the files in the workspace folder, unless the folder is empty or the same snapshot is on
    record already."""
    if not workspace.path.is_dir() or not any(workspace.path.iterdir()):
        return
    taken = await workspace.snapshot()
    if state.workspace is None or state.workspace.digest != taken.digest:
        await thread.append(taken.entry())
