"""`clew import`: put a thread from a `.clew` file into a store, or the conversations of another system."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import clew
from clew import advice
from clew.cli.deferred import importers
from clew.cli.failures import report_errors
from clew.cli.options import Json
from clew.cli.output.console import hint, print_json, say, working
from clew.cli.stores import on_store, shown_store
from clew.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head
    from clew.compat.importers import Imported, Outcome, Source

__all__ = ["import_"]

_FAILED = 1


@report_errors
def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A .clew file, as `clew export` writes it; - is the input. With --from: where that system has its data.",
        ),
    ],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY...]", help="With --from: the conversations to bring. Default: all of them."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--from", metavar="KIND", help="The system that PATH is from, such as llm or native."),
    ] = None,
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="NEW", help="The thread's new id. Default: the one it had.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let it take much memory, for a file whose origin you know.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option("--store", "--to", metavar="URL", help="The store. Default: CLEW_STORE, or a file of your own."),
    ] = None,
    json: Json = False,
) -> None:
    """Bring threads from a file, or from another system.

    Reads a file that `clew export` wrote, and prints the thread's id. The whole file is checked before the thread
    appears in the store. If the store has an equal thread of that id, nothing changes; a different one is never
    overwritten.

    With --from, each conversation that another system has stored becomes a thread. Nothing there is changed. You can run
    it again, after a crash or later: it skips what is in the store already, and extends what has grown. It lists what
    could not be carried over, and exits with 1 if a conversation could not be imported.

    \b
    Examples:
      clew import trip.clew --as trip-from-a-friend
      clew import --from native ~/.codex --to sqlite:///clew.db
    """
    if kind is not None:
        if trust:
            raise InvalidInput(
                "--trust is for a .clew file. What --from brings is not trusted: `clew resume` asks first."
            )
        _bring(kind, file, keys, new_id, store, json)
        return
    if keys:
        raise InvalidInput(
            f"a .clew file has one thread, so {keys[0]!r} names nothing in it. For other data say --from."
        )
    head = on_store(store, lambda opened: _import(opened, file, new_id, trust), "made")
    if json:
        print_json({"thread_id": head.thread_id, "status": head.status, "turns": head.turns, "frames": head.frames})
        return
    say(head.thread_id)
    hint(f"Look at it with: {advice.show(head.thread_id, store=shown_store(store))}")


async def _import(store: Checkpointer, file: str, new_id: str | None, trust: bool) -> Head:
    """Import a thread from a file and return its head. If `file` is `-`, read the standard input. The thread gets the
    id `new_id`; if that is None, the thread keeps the id that the file names. With `trust` the import may take much
    memory. If an option would avoid the error that occurs, a note on the error names the option."""
    source = sys.stdin.buffer if file == "-" else file
    try:
        with working("Importing") as tick:
            return await clew.Thread.import_(store, source, thread_id=new_id, trust=trust, progress=tick)
    except Conflict as conflict:
        conflict.add_note("To keep both, give it another id: --as NEW")
        raise
    except InvalidInput as refused:
        if "trust=True" in str(refused):
            refused.add_note("On the command line that is --trust")
        raise


def _bring(kind: str, path: str, keys: Sequence[str] | None, new_id: str | None, store: str | None, json: bool) -> None:
    """Import the conversations of another system, and print what was done with each as soon as it is done, or all at the
    end with `json`. `kind` names the system and `path` is where its data is. Only the conversations with these keys are
    imported, all if there are none. `new_id` is the id for the thread of a single conversation. `store` is the URL of
    the store. Exits with the code 1 if one could not be imported."""
    with importers.open_source(kind, path) as source:
        done = on_store(store, lambda opened: _bring_all(opened, source, keys or None, new_id, json), "made")
    lost = sum(map(len, done.losses.values()))
    if json:
        print_json(
            {
                "imported": done.ids,
                "updated": done.updated,
                "skipped": done.skipped,
                "failed": done.failed,
                "losses": done.losses,
            }
        )
    else:
        counts = [f"{len(done.ids)} imported", f"{len(done.updated)} extended", f"{len(done.skipped)} there already"]
        counts += [f"{len(done.failed)} not imported"] if done.failed else []
        said = ", ".join(counts) + "."
        if lost:
            said += f" In {len(done.losses)} of them {lost} things could not be carried over; they are listed above."
        say(said, dim=True, err=True)
        if any("under another id" in reason for reason in done.failed.values()):
            hint(f"To have one of them under another id: clew import --from {kind} PATH KEY --as NEW")
    if done.failed:
        raise typer.Exit(_FAILED)


async def _bring_all(
    store: Checkpointer, source: Source, keys: Sequence[str] | None, new_id: str | None, json: bool
) -> Imported:
    with working("Importing") as tick:
        return await importers.import_all(
            source, store, keys=keys, thread_id=new_id, progress=tick, tell=None if json else _tell
        )


def _tell(outcome: Outcome) -> None:
    """Print what was done with one conversation, and what of it could not be carried over."""
    if outcome.status == "failed":
        say(f"{outcome.key}: not imported: {outcome.reason}", err=True)
    elif outcome.status != "skipped":
        say(f"{outcome.thread_id}: {'imported' if outcome.status == 'imported' else 'extended'}")
    for loss in outcome.losses:
        say(f"{outcome.thread_id}: not carried over: {loss}", err=True)
