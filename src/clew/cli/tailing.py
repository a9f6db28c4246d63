"""`clew tail`: follow a thread while somebody works on it, on this machine or any other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli._failures import told
from clew.cli._options import Json, Store, ThreadId

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer, Head
    from clew.cli._following import Follower

__all__ = ["tail"]

_SHORTEST, _LONGEST = 0.1, 2.0
"""Seconds between two looks at a thread: few while it moves, more while it does not."""
_PATIENCE = 30.0
"""Seconds that a store which is away is waited for, once it has been there."""


@told
def tail(
    thread: ThreadId,
    turns: Annotated[
        int, typer.Option("--turns", "-n", min=0, metavar="N", help="Begin with so many turns that are there already.")
    ] = 3,
    wait: Annotated[bool, typer.Option("--wait", help="If there is no such thread yet, wait for it.")] = False,
    forever: Annotated[
        bool, typer.Option("--forever", "-f", help="Go on when nobody works on it, until Ctrl+C.")
    ] = False,
    json: Json = False,
    store: Store = None,
) -> None:
    """Follow a thread while another process works on it.

    What is said and done appears as it goes on record, whoever works on it and wherever. Ends when nobody works on it
    any more: done, failed, waiting for an answer, interrupted or crashed. With --json, each entry of the log.

    \b
    Examples:
      clew tail trip
      clew tail trip --turns 0 --json
    """
    from clew.cli._stores import on_store, shown_store

    async def work(opened: Checkpointer) -> None:
        from clew.cli._conversation import Pen
        from clew.cli._following import Follower, JsonView, PrintView
        from clew.cli._output import console

        thread_id = await _found(opened, thread, wait)

        def begin() -> Follower:
            view = JsonView(opened, turns) if json else PrintView(Pen(console()), turns)
            return Follower(opened, thread_id, view)

        head = await _follow(opened, thread_id, begin, forever)
        if not json:
            _say_end(head, shown_store(store))

    on_store(store, work, "made" if wait else "refused")


async def _found(store: Checkpointer, given: str, wait: bool) -> str:
    from clew.cli._hints import hint
    from clew.cli._stores import find_thread
    from clew.errors import ThreadNotFound

    try:
        return await find_thread(store, given)
    except ThreadNotFound as absent:
        if not wait:
            raise
        thread_id = absent.thread_id
    hint(f"Waiting for thread {thread_id!r} …")
    pause = _SHORTEST
    while await store.head(thread_id) is None:
        await asyncio.sleep(pause)
        pause = min(_LONGEST, pause * 1.5)
    return thread_id


async def _follow(store: Checkpointer, thread_id: str, begin: Callable[[], Follower], forever: bool) -> Head:
    """Show what comes, until nobody works on it any more. A thread deleted and made again is followed from its start."""
    from clew.errors import ThreadNotFound
    from clew.threads.views.timeline import is_abandoned

    follower, log_id, pause = begin(), "", _SHORTEST
    while True:
        head = await _patiently(store, thread_id)
        if head is None:
            raise ThreadNotFound(thread_id)
        if log_id and head.log_id != log_id:
            follower = begin()
        log_id = head.log_id
        moved = await follower.catch_up(head)
        if not forever and (head.status != "running" or is_abandoned(head)):
            follower.end(head)
            return head
        pause = _SHORTEST if moved else min(_LONGEST, pause * 1.5)
        await asyncio.sleep(pause)


async def _patiently(store: Checkpointer, thread_id: str) -> Head | None:
    """The head, from a store that may be away for a moment."""
    from clew.cli._hints import hint
    from clew.errors import Unavailable

    until, told_of_it = time.monotonic() + _PATIENCE, False
    while True:
        try:
            return await store.head(thread_id)
        except Unavailable as error:
            if time.monotonic() > until:
                raise
            if not told_of_it:
                hint(f"Waiting for the store: {error}")
                told_of_it = True
            await asyncio.sleep(_LONGEST)


def _say_end(head: Head, store: str) -> None:
    from clew import advice
    from clew.cli._heads import shown_status
    from clew.cli._hints import hint

    status = shown_status(head)
    if status != "done":
        hint(f"Nobody works on it now: it is {status}. To see what to do: {advice.why(head.thread_id, store=store)}")
