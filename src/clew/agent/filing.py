"""A thread's files: brought where there are none, and put on record as they are."""

from __future__ import annotations

import logging

from clew.agent.events import SnapshotSaved
from clew.agent.journal import Journal
from clew.agent.runs import Emit
from clew.workspace import Workspace

__all__ = ["bring_files", "keep_files"]

log = logging.getLogger("clew.agent")


async def bring_files(journal: Journal, workspace: Workspace, *, always: bool = False) -> tuple[str, str] | None:
    """The files on record, where there are none: on another machine, say. Those that are there are the user's, and stay
    as they are, unless it is to be so `always`; that they differ from the record is told, by both digests, and what there
    is goes on record."""
    state = journal.thread.checkpoint
    recorded = state.workspace
    if recorded is None and not state.turns:
        return None
    is_empty = not any(workspace.path.iterdir())
    if recorded is not None and (is_empty or always):
        restored = await workspace.restore(recorded)
        log.info("thread %r: its files are restored to %s", journal.thread.thread_id, workspace.path)
        if restored.before_restore is not None and restored.before_restore.digest != recorded.digest:
            await journal.record(restored.before_restore.entry(), recorded)
    if is_empty or always:
        return None
    now = await workspace.snapshot()
    if recorded is not None and now.digest == recorded.digest:
        return None
    await journal.record(now.entry())
    return None if recorded is None else (recorded.digest, now.digest)


async def keep_files(journal: Journal, workspace: Workspace, emit: Emit) -> None:
    """The files as they are, on record if they are others than the last."""
    state = journal.thread.checkpoint
    taken = await workspace.snapshot()
    if state.workspace is None or state.workspace.digest != taken.digest:
        await journal.thread.append(taken.entry())
        emit(SnapshotSaved(state.turns, taken.digest, taken.files))
