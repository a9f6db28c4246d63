"""Options and arguments that many commands have, said once."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Json", "Store", "ThreadId", "Yes", "complete_thread"]


def complete_thread(incomplete: str) -> list[str]:
    """The newest threads of the store whose ids begin so. A store that cannot be read offers nothing: a shell has no place
    for an error while somebody types."""
    import asyncio

    from clew import Thread
    from clew.checkpointers import HeadQuery
    from clew.cli.stores import opened
    from clew.errors import ClewError

    async def look() -> list[str]:
        async with opened(None) as store:
            return [head.thread_id async for head in Thread.list(store, HeadQuery(prefix=incomplete, limit=30))]

    try:
        return asyncio.run(look())
    except ClewError:
        return []


Store = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="The store; without it, CLEW_STORE or the default one."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for other programs.")]
ThreadId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A thread: its id, any beginning of it that no other has, or a handle.",
        autocompletion=complete_thread,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]
