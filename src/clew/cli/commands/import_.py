"""`clew import`: bring a thread back from a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

import clew
from clew import advice
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store
from clew.cli.output.console import hint, print_json, say, working
from clew.cli.stores import on_store, shown_store
from clew.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head

__all__ = ["import_"]


@report_errors
def import_(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A .clew file, as `clew export` writes it; - is the input.")
    ],
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="NEW", help="The thread's new id. Default: the one it had.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let it take much memory, for a file whose origin you know.")
    ] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Bring a thread back from a file.

    Reads a file that `clew export` wrote, and prints the thread's id. The whole file is checked before the thread
    appears in the store. If the store has an equal thread of that id, nothing changes; a different one is never
    overwritten.

    \b
    Examples:
      clew import trip.clew --as trip-from-a-friend
    """
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
