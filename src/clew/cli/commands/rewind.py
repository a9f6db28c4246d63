"""`clew rewind`: take a thread and its files back to the end of an earlier turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import clew
from clew import advice
from clew.cli.deferred import agent_rewind, agent_settings, agent_trust, thread_reader, workspaces
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId, Yes
from clew.cli.output.console import confirm, print_json, say
from clew.cli.stores import find_thread, on_store, shown_store
from clew.errors import InvalidInput, UsageError

if TYPE_CHECKING:
    from clew.agent.rewind import RewindDone
    from clew.checkpointers import Checkpointer
    from clew.log import Checkpoint, WorkspaceSnapshot
    from clew.workspace import Restored

__all__ = ["rewind"]

_SHOWN = 20


class _Asked(NamedTuple):
    """The options of `clew rewind`: the point to go back to, and whether the conversation, the files or both go back."""

    turn: int | None
    frame: int | None
    files: bool
    conversation: bool
    folder: Path | None
    yes: bool


@report_errors
def rewind(
    thread: ThreadId,
    turn: Annotated[int | None, typer.Option("--turn", metavar="N", help="Back to the end of this turn.")] = None,
    files: Annotated[bool, typer.Option("--files", help="Only the files; the conversation stays as it is.")] = False,
    conversation: Annotated[
        bool, typer.Option("--conversation", help="Only the conversation; the files stay as they are.")
    ] = False,
    workspace: Annotated[
        Path | None,
        typer.Option("--workspace", metavar="DIR", help="The folder of its files, if the thread does not say."),
    ] = None,
    frame: Annotated[
        int | None,
        typer.Option(
            "--frame", metavar="N", help="With --files: as they were after this many frames; undoes a rewind."
        ),
    ] = None,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Go back to the end of an earlier turn.

    Takes back the conversation, and the files if the thread has some. Later turns stay in the log, and tokens and cost
    still count. Shows what will change in the folder and snapshots it first. At the end it prints the commands that
    undo it.

    \b
    Examples:
      clew rewind trip --turn 2 --conversation
      clew rewind trip --turn 2 --workspace ./trip --yes
      clew rewind trip --turn 1 --files --workspace ./trip --yes
    """
    if files and conversation:
        raise InvalidInput("--files and --conversation cannot be used together. Leave out both to rewind both.")
    if (turn is None) == (frame is None):
        raise InvalidInput("where to? Give --turn N, or --frame N together with --files.")
    if frame is not None and not files:
        then = advice.fork(thread, frame, store=shown_store(store))
        raise InvalidInput(f"--frame needs --files. For the conversation as it was then: {then}")
    asked = _Asked(turn, frame, files, conversation, workspace, yes)
    done, folder = on_store(store, lambda opened: _rewind(opened, thread, asked))
    undo = _undo(done, folder, asked, store)
    if json:
        print_json(_as_json(done, folder, asked, undo))
        return
    for line in _lines(done, folder, asked):
        say(line)
    if undo:
        say("\n".join(["To undo it:", *(f"  {command}" for command in undo)]), dim=True, err=True)


async def _rewind(store: Checkpointer, given: str, asked: _Asked) -> tuple[RewindDone, Path | None]:

    thread_id = await find_thread(store, given)
    now = await clew.Thread.load(store, thread_id)
    if asked.frame is None:
        then = await clew.Thread.load(store, thread_id, at_turn=asked.turn)
    else:
        then = await thread_reader.state_after(store, thread_id, asked.frame)
    files, folder = _target(thread_id, now, then, asked)
    if folder is not None and asked.folder is None and not await _is_own_folder(store, thread_id, now, folder):
        if asked.yes:
            raise UsageError(
                f"the record of thread {thread_id!r} names the folder {folder}, which you have not agreed to on this "
                f"machine. Nothing was changed. To put the files there, name it: --workspace {advice.quoted(str(folder))}"
            )
        confirm(f"The files go to {folder}, which the record names. Put them there?", yes=False)
    workspace = None if folder is None else workspaces.Workspace(folder, store)
    place = None if workspace is None else workspace.path
    if workspace is not None and files is not None:
        await _ask(workspace, files, asked)
    to_turn = None if asked.files else asked.turn
    return await agent_rewind.rewind(store, thread_id, to_turn, files=files, workspace=workspace), place


def _target(
    thread_id: str, now: Checkpoint, then: Checkpoint, asked: _Asked
) -> tuple[WorkspaceSnapshot | None, Path | None]:
    """Return the snapshot to restore, and the folder to restore it into; None for both if the files stay as they are.
    `now` is the thread's present state, and `then` its state at the turn or frame to go back to. `asked` has the
    options that the user gave.

    Raises `InvalidInput` if only the files are to go back and `then` has none, or if the folder of the files is not
    known.
    """

    if asked.conversation or (now.workspace is None and not asked.files):
        return None, None
    if then.workspace is None:
        if asked.files:
            raise InvalidInput(f"thread {thread_id!r} has no files on record at that point.")
        return None, None
    if asked.folder is not None:
        return then.workspace, asked.folder
    recorded = Path(str(now.limits.get("cwd") or agent_settings.setup_of(now).workspace))
    if recorded.is_absolute() and recorded.is_dir():
        return then.workspace, recorded
    raise InvalidInput(
        f"thread {thread_id!r} has files, but their folder on this machine is not known. "
        "Give it with --workspace DIR, or leave the files alone with --conversation."
    )


async def _is_own_folder(store: Checkpointer, thread_id: str, now: Checkpoint, folder: Path) -> bool:
    """Tell whether this user has agreed, on this machine, that the thread works in this folder: the thread's setup (the
    stored options for its agent) names the folder, and the user made the setup or agreed to it. `now` is the thread's
    present state."""
    head, setup = await store.head(thread_id), agent_settings.setup_of(now)
    named = str(folder) in (setup.workspace, setup.folder)
    return named and head is not None and agent_trust.is_trusted(head.log_id, setup)


async def _ask(workspace: workspaces.Workspace, files: WorkspaceSnapshot, asked: _Asked) -> None:
    """List what restoring the snapshot `files` would change in the workspace's folder, and ask the user whether to do
    it. Returns if the answer is yes, and exits the command otherwise. Returns without asking if --yes is given, if the
    folder is empty, or if nothing in it would change. `asked` has the options of the command."""
    if asked.yes or _is_empty(workspace.path):
        return
    changes = (await workspace.diff(None, files)).changes
    if not changes:
        return
    listed = [f"  {change.kind} {change.path}" for change in changes[:_SHOWN]]
    more = [f"  and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    say("\n".join([f"In {workspace.path}:", *listed, *more]), err=True)
    confirm("Make these changes? What is there now is snapshotted first.", asked.yes)


def _is_empty(folder: Path) -> bool:
    return not folder.is_dir() or not any(folder.iterdir())


def _lines(done: RewindDone, folder: Path | None, asked: _Asked) -> list[str]:
    lines = []
    if not asked.files:
        lines.append(f"{done.thread_id}: back at the end of turn {asked.turn} of {done.turns}")
    if done.restored is not None:
        what = done.restored
        changed = (
            f"{what.written} written, {what.deleted} deleted" if what.written or what.deleted else "nothing to change"
        )
        lines.append(f"{folder}: as at {_point(asked)}: {changed}")
        lines += [f"  kept: {left.path} ({left.reason})" for left in what.kept]
    elif not asked.conversation:
        lines.append(f"{done.thread_id}: no files on record at {_point(asked)}; those in its folder stay as they are")
    return lines


def _point(asked: _Asked) -> str:
    return f"the end of turn {asked.turn}" if asked.frame is None else f"frame {asked.frame}"


def _undo(done: RewindDone, folder: Path | None, asked: _Asked, url: str | None) -> list[str]:
    """Return the shell commands that undo the rewind `done`: one forks the thread as it was before the rewind, the
    other restores the old files into `folder`. The first command is left out if the conversation did not change, the
    second if no file changed. The commands name the store at `url`. `asked` has the options that
    `clew rewind` was called with."""
    commands = []
    if not asked.files and asked.turn is not None and asked.turn < done.turns:
        commands.append(advice.fork(done.thread_id, done.frames, store=shown_store(url)))
    if folder is not None and done.restored is not None and _changed_something(done.restored):
        commands.append(advice.restore_files(done.thread_id, done.frames, str(folder), store=shown_store(url)))
    return commands


def _changed_something(restored: Restored) -> bool:
    return restored.before_restore is not None and bool(restored.written or restored.deleted)


def _as_json(done: RewindDone, folder: Path | None, asked: _Asked, undo: list[str]) -> dict[str, Any]:
    return {
        "thread_id": done.thread_id,
        "turn": asked.turn,
        "turns_before": done.turns,
        "frames_before": done.frames,
        "conversation": not asked.files,
        "files": None if done.restored is None else _files(done.restored, folder),
        "undo": undo,
    }


def _files(restored: Restored, folder: Path | None) -> dict[str, Any]:
    before = restored.before_restore
    return {
        "folder": str(folder),
        "written": restored.written,
        "touched": restored.touched,
        "deleted": restored.deleted,
        "kept": [left.path for left in restored.kept],
        "before": None if before is None else before.digest,
    }
