"""`clew adopt`: take a session of a coding agent into a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew import advice
from clew.cli.deferred import providers
from clew.cli.failures import report_errors
from clew.cli.native_sessions import SessionProvider, native_session
from clew.cli.options import Json, Store
from clew.cli.output.console import hint, print_json, say
from clew.cli.stores import on_store, shown_store
from clew.errors import ThreadNotFound

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer
    from clew.cli.native_sessions import Native

__all__ = ["adopt"]

_Session = Annotated[
    str, typer.Argument(metavar="SESSION", help="Its id from `clew sessions`, a beginning of that, or its file.")
]


@report_errors
def adopt(
    session: _Session,
    provider: SessionProvider = None,
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="The thread's id. Default: a new one.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Take a session of a coding agent into a thread.

    Stores the whole session: the conversation, and the files in which the
    agent's program keeps it. `clew resume` then goes on with it on any
    machine that reaches the store, or with another agent. The program's own
    copy stays as it is.

    \b
    Examples:
      clew adopt 0199c0de --provider codex --as paris
    """
    native = native_session(session, provider)
    thread_id, turns = on_store(store, lambda opened: _adopt(opened, native, new_id), "made")
    command = advice.resume(thread_id, advice.PROMPT, store=shown_store(store))
    if json:
        print_json(
            {"thread_id": thread_id, "provider": native.provider, "id": native.key, "turns": turns, "resume": command}
        )
        return
    say(thread_id)
    hint(f"{turns} turns of {native.provider} session {native.key}. To go on: {command}")


async def _adopt(store: Checkpointer, native: Native, new_id: str | None) -> tuple[str, int]:
    """Copy `native`, a session that a coding agent's program keeps on this machine, into a new thread of the store. The
    thread gets the id `new_id`; if that is None, an id is made for it. Returns the thread's id and how many turns the
    thread has."""

    thread_id = await providers.adopt(native.key, store, provider=native.provider, thread_id=new_id)
    head = await store.head(thread_id)
    if head is None:
        raise ThreadNotFound(thread_id)
    return thread_id, head.turns
