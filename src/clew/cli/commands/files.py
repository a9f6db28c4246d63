"""`clew files`: list or copy the files of a thread from its snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import clew
from clew._runtime.text import clock, plural, size
from clew.cli.deferred import agent_workspace, asyncio, msgspec, workspace_reader, workspaces
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId, Yes
from clew.cli.output.console import confirm, hint, print_json, say, working
from clew.cli.output.tables import Cell, Column, print_table
from clew.cli.stores import find_thread, on_store
from clew.errors import InvalidInput

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer
    from clew.log import WorkspaceSnapshot
    from clew.workspace.reader import Listed

__all__ = ["files"]


@report_errors
def files(
    thread: ThreadId,
    turn: Annotated[
        int | None, typer.Option("--turn", metavar="N", help="As of the end of this turn. Default: the newest.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Copy them into this folder instead of listing them.")
    ] = None,
    setuid: Annotated[
        bool, typer.Option("--setuid", help="With --out: also give programs their setuid and setgid bits.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
    store: Store = None,
) -> None:
    """List the files of a thread, or bring a copy of them.

    Reads them from the snapshots in the store. The copy goes into a new or empty folder. With any other folder the
    command asks first: it snapshots the folder, and then makes it exactly what the thread's snapshot says.

    \b
    Examples:
      clew files trip
      clew files trip --turn 2 --out ./trip-then
    """

    async def work(opened: Checkpointer) -> None:
        thread_id = await find_thread(opened, thread)
        kept, missing = await _snapshot(opened, thread_id, turn)
        if out is not None:
            await _copy(opened, thread_id, kept, _Target(out, setuid), yes, json)
        else:
            await _list(opened, thread_id, kept, json)
        if missing and not json:
            hint(f"{missing.capitalize()}: calls after that may have changed others.")

    on_store(store, work)


async def _snapshot(store: Checkpointer, thread_id: str, turn: int | None) -> tuple[WorkspaceSnapshot, str]:
    """Return the newest snapshot of the thread's files as of the end of a turn; if `turn` is None, as of now. Also
    returns a remark for the user if the files may be older than the conversation, otherwise an empty text.

    Raises `InvalidInput` if there is no snapshot.
    """

    state = await clew.Thread.load(store, thread_id, at_turn=turn)
    if state.workspace is None:
        when = "" if turn is None else f" as of turn {turn}"
        why = "it had no workspace then" if state.changing is None else "it stopped before they were snapshotted"
        raise InvalidInput(f"thread {thread_id!r} has no files on record{when}: {why}.")
    return state.workspace, agent_workspace.unkept(state)


async def _list(store: Checkpointer, thread_id: str, kept: WorkspaceSnapshot, json: bool) -> None:

    found = await workspace_reader.list_snapshot(store, kept)
    if json:
        for one in found:
            print_json(_object(one))
        return
    _print_tree(found)
    count = sum(one.what == "file" for one in found)
    hint(f"{plural(count, 'file')}, {size(kept.size)}")


def _object(one: Listed) -> dict[str, Any]:
    """Return a file as the object that --json prints, with its file mode as octal text."""
    return {**msgspec.structs.asdict(one), "mode": f"{one.mode:04o}"}


def _print_tree(found: Sequence[Listed]) -> None:
    """Print the files of a snapshot as a tree, with their sizes and times. Signs mark folders (`/`), links (`->`) and
    executables (`*`)."""
    rows = []
    for one in found:
        depth, name = one.path.count("/"), one.path.rpartition("/")[2]
        sign = {"folder": "/", "link": f" -> {one.target}"}.get(one.what, "*" if one.mode & 0o111 else "")
        style = {"folder": "bold blue", "link": "cyan"}.get(one.what, "green" if one.mode & 0o111 else "")
        weight = "" if one.size is None else size(one.size)
        rows.append([Cell("  " * depth + name + sign, style), Cell(weight), Cell(clock(one.modified_at), "dim")])
    print_table([Column("name", gives_way=True), Column("size", right=True), Column("changed", spare=1)], rows)


class _Target(NamedTuple):
    """Where a copy of files goes, and whether programs get their setuid and setgid bits there."""

    out: Path
    setuid: bool


async def _copy(
    store: Checkpointer, thread_id: str, kept: WorkspaceSnapshot, target: _Target, yes: bool, json: bool
) -> None:
    out = target.out
    if await asyncio.to_thread(_holds_something, out):
        confirm(f"{out} is not empty. Make it exactly what {thread_id!r} had, and delete what else is there?", yes)
    with working("Copying", kept.files) as tick:
        restored = await workspaces.Workspace(out, store).restore(kept, progress=tick, setuid=target.setuid)
    before = None if restored.before_restore is None else restored.before_restore.digest
    if json:
        print_json({"thread_id": thread_id, "out": str(out), "files": kept.files, "size": kept.size, "before": before})
        return
    say(f"{plural(kept.files, 'file')} copied to {out}")
    if before is not None:
        hint(f"What was there before is kept as snapshot {before} for at least half a day.")


def _holds_something(out: Path) -> bool:
    """Tell whether the path is a folder that is not empty; False if the path does not exist. Raises `InvalidInput` if
    it exists and is not a folder."""
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"{out} is not a folder. Name a new or empty one.")
    return out.is_dir() and any(out.iterdir())
