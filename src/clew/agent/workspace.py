"""The files of a thread during a run: restored into an empty folder, snapshotted between turns, and recorded when the
run stops."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clew._runtime.aio import cancel_and_wait, settle
from clew.agent.events import SnapshotSaved
from clew.agent.journal import Journal
from clew.agent.prompts import NOTE
from clew.agent.recovery import shown_call
from clew.agent.run import Emit
from clew.agent.signals import when_killed
from clew.log import Checkpoint, Present, StateSet, WorkspaceChanging
from clew.messages import Assistant, ToolCall, tool_calls
from clew.threads.leases import this_process
from clew.workspace import SnapshotRef, Workspace

__all__ = ["Files", "lacks_files", "unkept"]

log = logging.getLogger("clew.agent")
_MOST_CALLS = 20
_RESTORING = "clew:restoring"
"""The name of the value in a thread's state that says that a restore of files has begun and not ended. The value names
the folder that the files are restored into."""
_LONGEST_PROBLEM = 200


def unkept(state: Checkpoint | Present) -> str:
    """Return "" if the files on record are as new as the conversation in this state of a thread. If they may be older,
    return a phrase such as "the files on record are those of turn 3" or "no files are on record"."""
    if state.changing is None:
        return ""
    if state.workspace is None:
        return "no files are on record"
    return f"the files on record are those of turn {state.files_turn}"


class Files:
    """Restores and snapshots the workspace (the folder that tools work in) during a run on a thread. Does nothing if
    there is no workspace.

    Before tools run that may change files, an entry `WorkspaceChanging` is recorded. It is valid until the next
    snapshot is recorded. So if the process stops in between, the next process knows that the files on record may be
    older than the conversation.
    """

    def __init__(self, journal: Journal, workspace: Workspace | None, emit: Emit, *, every: int = 1) -> None:
        """A snapshot of the files in `workspace` is taken after every `every` turns with tool calls. `journal` writes
        entries, such as those that record snapshots, to the thread's log, and `emit` is called with each event. Without
        a `workspace`, the object does nothing."""
        self._journal = journal
        self._thread = journal.thread
        self._workspace = workspace
        self._emit = emit
        self._every = every
        self._turns = 0
        """How many turns with tool calls have ended since the last snapshot."""
        self._taking: asyncio.Task[None] | None = None
        if workspace is not None:
            when_killed(lambda: unkept(journal.thread.present))

    async def bring(self, *, always: bool = False) -> dict[str, tuple[Any, Any]]:
        """Restore the files that the thread has on record into the workspace, the agent's folder, if that is empty, as
        on another machine, or if `always` is set. Return a dict of what differs from the record; empty if nothing does.

        A folder that is not empty is restored only if `always` is set or an earlier restore into it was killed half
        way. Otherwise it stays as it is, and a snapshot of it is taken. If the snapshot differs from the recorded one,
        the dict has the key `files`, with the recorded digest and the present one.

        If the folder is empty or is restored, and the files on record may be older than the conversation, the dict has
        the key `files_turn`. Its value is a pair: the number of the last turn, and that of the turn after which the
        files were recorded. A note that tells the model so is stored before the first file is restored.
        """
        state = self._thread.checkpoint
        changing = state.changing
        if self._workspace is None or (state.workspace is None and changing is None and not state.turns):
            return {}
        empty = _empty_folder(self._workspace.path)
        again = always or state.state.get(_RESTORING) == _name_of(self._workspace.path)
        if not empty and (state.workspace is None or not again):
            return await self._compare(self._workspace, state)
        drift: dict[str, tuple[Any, Any]] = {}
        if changing is not None and not (empty and empty == changing.empty):
            drift["files_turn"] = max(state.turns, changing.since), state.files_turn
            await self._journal.record(StateSet(NOTE, _told(state)), WorkspaceChanging())
            await self._journal.flush()
        if state.workspace is not None:
            await settle(self._restore(self._workspace, state))
        return drift

    async def _compare(self, workspace: Workspace, state: Checkpoint) -> dict[str, tuple[Any, Any]]:
        recorded, now = state.workspace, await workspace.snapshot()
        if not await self._record(state, now) or recorded is None:
            return {}
        return {"files": (recorded.digest, now.digest)}

    async def _restore(self, workspace: Workspace, state: Checkpoint) -> None:
        """Restore the recorded files into the workspace. While this is under way, a value in the log says so. If the
        process is killed meanwhile, the next run finds that value and restores again. Without it, that run would take a
        half restored folder for the user's own files."""
        recorded = state.workspace
        assert recorded is not None  # noqa: S101 - the caller has checked
        await self._journal.record(StateSet(_RESTORING, _name_of(workspace.path)))
        await self._journal.flush()
        restored = await workspace.restore(recorded)
        self._journal.hold(StateSet(_RESTORING, None))
        log.info("thread %r: its files are restored to %s", self._thread.thread_id, workspace.path)
        if restored.before_restore is not None and restored.before_restore.digest != recorded.digest:
            await self._journal.record(restored.before_restore.entry(), recorded)

    def may_change(self, state: Checkpoint | Present, turn: int) -> None:
        """Prepare a log entry that says that tool calls from turn number `turn` on may change files. The entry is
        recorded together with the next entries. Does nothing if the log says so already. `state` is the thread's
        present state.

        The calls must begin only after those entries are stored.
        """
        if self._workspace is not None and state.changing is None:
            self._journal.hold(WorkspaceChanging(turn, _empty_folder(self._workspace.path)))

    def count_turn(self) -> None:
        """Count one more turn whose tool calls all have a result. A snapshot of the files is taken after a fixed number
        of such turns."""
        self._turns += 1

    def begin(self) -> None:
        """Start a snapshot in the background, so that it is taken while the model is asked. Does nothing unless a
        snapshot is due, which is so after a fixed number of turns with tool calls."""
        if self._workspace is not None and self._turns >= self._every and self._taking is None:
            self._taking = asyncio.create_task(self._take(self._workspace))

    async def ready(self) -> None:
        """Wait until a snapshot that `begin` started is recorded, and raise its error if it failed. Cancelling this
        wait does not stop the snapshot."""
        if self._taking is not None:
            with self._journal.wait():
                await asyncio.wait([self._taking])
                taken, self._taking = self._taking, None
                taken.result()

    async def keep(self) -> None:
        """Take and record a snapshot of the workspace, if its files may have changed since the last snapshot. Waits
        first for a snapshot that is being taken. The caller must end all tools before, so that nothing changes the
        files meanwhile."""
        if self._taking is not None:
            with self._journal.wait():
                await asyncio.wait([self._taking])
            if not self._taking.cancelled() and (error := self._taking.exception()) is not None:
                log.warning("thread %r: a snapshot failed, and is taken again: %s", self._thread.thread_id, error)
            self._taking = None
        if self._workspace is not None and (self._turns or self._thread.present.changing is not None):
            with self._journal.wait():
                await self._take(self._workspace)

    async def settle(self, after: BaseException | None = None) -> str:
        """Record the files of a run that failed or was stopped. Raises nothing. Does nothing, and returns "", if
        another process has taken over the thread.

        Returns "" if the files on record are as new as the conversation. Otherwise returns a text that names the turn
        whose files are on record, and says why newer files could not be recorded. If the reason is the error `after`,
        with which the run failed, the text does not repeat it.
        """
        if self._thread.lost is not None:  # the process that has the thread now has its files too
            if self._taking is not None:
                await cancel_and_wait([self._taking])
            return ""
        try:
            await self.keep()
        except Exception as error:  # noqa: BLE001 - what stopped the run matters more; this is reported beside it
            problem = f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM]
            log.warning("thread %r: its files could not be kept: %s", self._thread.thread_id, problem)
            standing = unkept(self._thread.present)
            if not standing or (type(error) is type(after) and str(error) == str(after)):
                return standing
            return f"{standing}, because they could not be kept: {problem}"
        return ""

    async def _take(self, workspace: Workspace) -> None:
        turns, self._turns = self._turns, 0
        try:
            await self._record(self._thread.present, await workspace.snapshot(), tell=True)
        except BaseException:
            self._turns += turns
            raise

    async def _record(self, state: Checkpoint | Present, taken: SnapshotRef, *, tell: bool = False) -> bool:
        """Record the snapshot `taken` if it differs from the last recorded one, and return whether it differs. With
        `tell`, also emit the event `SnapshotSaved` for a recorded snapshot. `state` is the thread's present state.

        If the snapshot does not differ, prepare an entry which says that the files on record are up to date. That entry
        is stored with the next entries.
        """
        if state.workspace is not None and state.workspace.digest == taken.digest:
            if state.changing is not None:
                self._journal.hold(WorkspaceChanging())
            return False
        await self._thread.append(taken.entry())
        if tell:
            self._emit(SnapshotSaved(state.turns, taken.digest, taken.files))
        return True


def _name_of(folder: Path) -> str:
    """Return a text that identifies a folder on all machines: the machine's name and the folder's path."""
    return f"{this_process().host}:{os.path.realpath(folder)}"


def lacks_files(folder: Path | None, state: Checkpoint) -> bool:
    """Return whether the thread has files on record, but `folder`, in which it is to go on, is empty, for example
    because this is another machine. Returns False if `folder` is None."""
    has_files = state.workspace is not None and state.workspace.files > 0
    return has_files and folder is not None and bool(_empty_folder(folder))


def _empty_folder(path: Path) -> str:
    """Return a text that identifies this empty folder, or "" if the folder is not empty or cannot be read.

    If a later call returns the same text, it is the same folder, and no file was made in it meanwhile. Even a file that
    was made and removed again changes the text.
    """
    try:
        with os.scandir(path) as names:
            if next(names, None) is not None:
                return ""
        facts = path.stat()
    except OSError:  # the next snapshot reports the problem
        return ""
    return f"{facts.st_dev}:{facts.st_ino}:{facts.st_mtime_ns}"


def _told(state: Checkpoint) -> str:
    """Return a note that tells the model that the files in the workspace may be older than the conversation, because
    the program was stopped before it recorded the newest ones. The note names the calls whose changes may be
    missing."""
    if state.workspace is None:
        found = "The workspace is empty: the program was stopped before any of its files were kept."
    else:
        until = f", up to turn {state.turns}" if state.turns > state.files_turn else ""
        found = (
            f"The files of the workspace were restored as they were after turn {state.files_turn}: the program was stopped "
            f"before it kept what was changed since{until}."
        )
    calls = _calls_since(state)
    since = f" What these calls changed may be missing: {'; '.join(map(shown_call, calls))}." if calls else ""
    return f"{found}{since} Look at the files before you rely on them, and make again what is missing."


def _calls_since(state: Checkpoint) -> Sequence[ToolCall]:
    """Return the tool calls of the turns after the last recorded snapshot of the files, but only the newest
    `_MOST_CALLS` of them. Calls that the model no longer sees, because a summary stands for their turns, are left
    out."""
    turns = state.turns - state.files_turn
    if turns <= 0:
        return ()
    responses = [message for message in state.messages if type(message) is Assistant][-turns:]
    return [call for response in responses for call in tool_calls(response)][-_MOST_CALLS:]
