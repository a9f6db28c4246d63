"""Options and arguments that many commands have, said once."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli._completing import complete_thread

__all__ = ["Json", "Store", "ThreadId", "Yes"]

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
