"""`clew fork`: start a new thread from a turn of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import clew
from clew.cli.consent import keep_carried
from clew.cli.deferred import thread_fork, thread_reader, way_forward
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store, ThreadId
from clew.cli.output.console import hint, print_json, say
from clew.cli.stores import find_thread, free_id, on_store, shown_store
from clew.errors import InvalidInput

if TYPE_CHECKING:
    from clew.agent.way_forward import Way
    from clew.checkpointers import Checkpointer, Head

__all__ = ["fork"]


@report_errors
def fork(
    thread: ThreadId,
    turn: Annotated[
        int | None, typer.Option("--turn", metavar="N", help="From the end of this turn. Default: the current state.")
    ] = None,
    frame: Annotated[
        int | None,
        typer.Option("--frame", metavar="N", help="From its state after this many frames; undoes a rewind."),
    ] = None,
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="NEW", help="The new thread's id. Default: one made from the old id.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Start a new thread from a turn of another.

    Prints the new id. The original stays as it is, and may be running. Both threads share the large values that are
    stored. Tokens and cost of the fork start at zero. The outcome of a tool call that was unfinished in the original is
    unknown in the fork.

    \b
    Examples:
      clew fork trip --turn 2
      clew fork trip --turn 2 --as trip-by-train
    """
    head, parent, at, way = on_store(store, lambda opened: _fork(opened, thread, turn, frame, new_id))
    if json:
        print_json({"thread_id": head.thread_id, "parent": parent, "turn": at, "frame": frame})
        return
    say(head.thread_id)
    hint(f"To go on{way.words(shown_store(store))}")


async def _fork(
    store: Checkpointer, given: str, turn: int | None, frame: int | None, new_id: str | None
) -> tuple[Head, str, int, Way]:
    """Fork the thread that `given` names. The fork begins with the state that the thread had at the end of the turn
    `turn` or, if `frame` is given, after the first `frame` frames (records) of its log. If both are None, it begins
    with the present state. The fork gets the id `new_id`, or an id made from the old one if `new_id` is None.

    Returns the fork's head, the original's id, the number of the turn after which the fork begins, and a `Way`, from
    which the command that goes on with the fork is made. Raises `InvalidInput` if both `turn` and `frame` are given.
    """

    if turn is not None and frame is not None:
        raise InvalidInput("--turn and --frame both set where the fork begins. Give one of them.")
    thread_id = await find_thread(store, given)
    if frame is not None:
        state = await thread_reader.state_after(store, thread_id, frame)
    elif turn is None:
        state = await clew.Thread.load(store, thread_id)
    else:
        state = await thread_fork.state_for(store, thread_id, turn)
    at = state.turns if turn is None else turn
    name = await free_id(store, f"{thread_id}-at-{at}") if new_id is None else new_id
    source = await store.head(thread_id)
    head = await thread_fork.fork(store, thread_id, state, name, at)
    if source is not None:
        keep_carried([(source, head)])
    return head, thread_id, at, await way_forward.way_of(store, head)
