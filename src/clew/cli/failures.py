"""How a command ends: what went wrong in one line, and an exit code that scripts can tell apart."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer

from clew._runtime.text import clean

if TYPE_CHECKING:
    from clew.errors import ClewError

__all__ = ["EXIT_CODES", "INTERRUPTED", "exit_code", "told"]

P = ParamSpec("P")
T = TypeVar("T")

EXIT_CODES = {
    0: "ok",
    1: "failed",
    2: "usage",
    3: "not found",
    4: "busy",
    5: "unavailable",
    6: "corrupt",
    130: "interrupted",
}
INTERRUPTED = 130

_BY_NAME = {
    "InvalidInput": 2,
    "UsageError": 2,
    "MissingExtra": 2,
    "ThreadNotFound": 3,
    "StoreNotFound": 3,
    "SessionNotFound": 3,
    "ThreadBusy": 4,
    "LeaseLost": 4,
    "Conflict": 4,
    "Unavailable": 5,
    "ModelUnavailable": 5,
    "ProviderLimited": 5,
    "Corrupt": 6,
    "MissingBlob": 6,
    "NewerFormat": 6,
    "WrongKey": 6,
}
"""By the names of errors, so that a command that fails early needs not import them all."""


def exit_code(error: BaseException) -> int:
    """What a process that fails with this ends with."""
    for kind in type(error).__mro__:
        if kind.__name__ in _BY_NAME and kind.__module__ in ("clew.errors", "clew.cli.stores"):
            return _BY_NAME[kind.__name__]
    return 1


def told(command: Callable[P, T]) -> Callable[P, T]:
    """A command whose errors are told in a line on the standard error, and not as a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        from clew.errors import ClewError

        try:
            return command(*args, **kwargs)
        except ClewError as error:
            _tell(error, kwargs.get("store"))
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever read the output has seen enough
            _say_no_more()
            raise typer.Exit(0) from None

    return run


def _tell(error: ClewError, store: Any) -> None:
    """What went wrong, and what to do about it in words of the command line: errors of the library speak of Python."""
    from clew import advice
    from clew.cli.stores import shown_store

    said, thread_id = clean(str(error)), getattr(error, "thread_id", "") or ""
    if isinstance(store, str) and advice.for_shell(said, thread_id, store="x") != said:
        said = advice.for_shell(said, thread_id, store=shown_store(store))
    typer.echo(f"Error: {advice.for_shell(said, thread_id)}", err=True)
    for note in getattr(error, "__notes__", ()):
        typer.echo(f"  {clean(note)}", err=True)


def _say_no_more() -> None:
    """What is still in the buffer goes nowhere, or Python would complain of the pipe once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
