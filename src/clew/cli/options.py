"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from typing import Annotated

import typer

import clew
from clew.cli.deferred import asyncio, checkpointers

__all__ = ["Json", "Store", "ThreadId", "Yes", "complete_thread"]


_OFFERED = re.compile(r"[\w./@:+%][\w./@:+=,%-]*", re.ASCII)


def complete_thread(incomplete: str) -> list[str]:
    """Return the thread ids that a shell offers for the word `incomplete`: the newest that begin with it, at most 30.

    Leaves out ids with characters that a shell could read as a command or as the end of a word: the shells' own
    functions for completion evaluate what they are offered. Returns an empty list if the store cannot be read, because
    a shell cannot show an error while the user types.
    """
    # here, because only the completion of an id needs it
    from clew.cli.stores import opened
    from clew.errors import ClewError

    async def look() -> list[str]:
        async with opened(None) as store:
            return [
                head.thread_id
                async for head in clew.Thread.list(store, checkpointers.HeadQuery(prefix=incomplete, limit=30))
                if _OFFERED.fullmatch(head.thread_id)
            ]

    try:
        return asyncio.run(look())
    except ClewError:
        return []


Store = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="The store. Default: CLEW_STORE, or a file of your own."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs, one object a line.")]
ThreadId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A thread: its id, an unambiguous beginning of it, or a handle.",
        autocompletion=complete_thread,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]
