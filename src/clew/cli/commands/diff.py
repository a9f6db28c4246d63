"""`clew diff`: show how a thread's conversation and files changed between two turns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew._runtime.text import visible
from clew.cli.deferred import log, msgspec, render, rich_text, thread_fork, thread_sketch, workspace_compare
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId
from clew.cli.output.console import console, hint, print_json
from clew.cli.output.conversation import said_lines
from clew.cli.stores import find_thread, on_store

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head
    from clew.log import Checkpoint
    from clew.messages import Message
    from clew.workspace import Change, Difference

__all__ = ["diff"]

_LONGEST = 400
"""The most characters that are printed of each block of a message."""
_COLOURS = {"-": "red", "+": "green", "@": "cyan"}


@report_errors
def diff(
    thread: ThreadId,
    a: Annotated[int, typer.Argument(metavar="A", help="From the end of this turn; 0 is before the first.")],
    b: Annotated[
        int | None, typer.Argument(metavar="B", help="To the end of this turn. Default: the current state.")
    ] = None,
    messages: Annotated[bool, typer.Option("--messages", help="Only the conversation.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Only the files.")] = False,
    json: Json = False,
    store: Store = None,
) -> None:
    """Show what changed between two turns, files included.

    Lists the messages that were added or removed, and shows the files line by line, as a patch that `git apply` takes.
    Long messages are cut; --json has them in full.

    \b
    Examples:
      clew diff trip 2 4
      clew diff trip 0 --files
    """

    async def work(opened: Checkpointer) -> None:
        thread_id = await find_thread(opened, thread)
        state, head = await thread_sketch.sketch_of(opened, thread_id)
        turns = a, state.turns if b is None else b
        for turn in turns:
            thread_fork.check_turn(thread_id, state, turn)
        old = log.fold([log.Rewound(turn=a)], state)
        new = state if b is None else log.fold([log.Rewound(turn=b)], state)
        changed = (
            await workspace_compare.compare(opened, old.workspace, new.workspace, text=True)
            if files or not messages
            else None
        )
        said = await _changes(opened, head, old, new) if messages or not files else None
        if json:
            _print_json(thread_id, turns, said, changed)
        else:
            _print(said, changed)

    on_store(store, work)


class _Said:
    """The messages that differ between two states of a thread: `gone` are only in the old state, `new` only in the new
    one."""

    def __init__(self, gone: Sequence[Message], new: Sequence[Message]) -> None:
        self.gone, self.new = gone, new

    def __bool__(self) -> bool:
        return bool(self.gone or self.new)


async def _changes(store: Checkpointer, head: Head, old: Checkpoint, new: Checkpoint) -> _Said:
    """Return the messages that only one of two states of a thread has: those only in the state `old`, and those only in
    the state `new`. `head` is the thread's head. Messages are compared by their position in the history, not by their
    text: two with the same text are still two."""

    async def only_in(one: Checkpoint, other: Checkpoint) -> list[Message]:
        ranges = thread_sketch.without(one.view, other.view)
        return [message async for _, message in thread_sketch.messages_at(store, head, ranges)]

    return _Said(await only_in(old, new), await only_in(new, old))


def _object(change: Change) -> dict[str, Any]:
    """Return a changed file as the object that --json prints, with its file modes as octal text."""
    modes = {name: None if mode is None else f"{mode:04o}" for name, mode in _modes(change)}
    return {**msgspec.structs.asdict(change), **modes}


def _modes(change: Change) -> list[tuple[str, int | None]]:
    return [("mode", change.mode), ("old_mode", change.old_mode)]


def _print_json(thread_id: str, turns: tuple[int, int], said: _Said | None, changed: Difference | None) -> None:
    document: dict[str, Any] = {"thread_id": thread_id, "from": turns[0], "to": turns[1]}
    if said is not None:
        document["removed"] = [render.plain_object(message) for message in said.gone]
        document["added"] = [render.plain_object(message) for message in said.new]
    if changed is not None:
        document["files"] = [_object(change) for change in changed.changes]
    print_json(document)


def _print(said: _Said | None, changed: Difference | None) -> None:
    out = console()
    for sign, style, found in (("-", "red", said.gone), ("+", "green", said.new)) if said is not None else ():
        for line in (line for message in found for line in said_lines(message, _LONGEST)):
            out.print(rich_text.Text(f"{sign} {line}", style), soft_wrap=True)
    if said and changed:
        out.print()
    if changed:
        _print_patch(changed.text())
    if not said and not changed:
        hint("Nothing differs.")


def _print_patch(patch: str) -> None:
    """Print a patch. On a terminal it is coloured, and control characters are removed. In a pipe it is unchanged, so
    that `git apply` takes it."""
    out = console()
    if not out.is_terminal:
        sys.stdout.write(patch)
        return
    for line in visible(patch).rstrip("\n").split("\n"):
        style = "bold" if line.startswith(("---", "+++")) else _COLOURS.get(line[:1], "")
        out.print(rich_text.Text(line, style), soft_wrap=True)
