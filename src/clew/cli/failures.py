"""How a command fails: one line on the standard error, and an exit code that tells scripts what kind of failure it was."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer

if TYPE_CHECKING:
    from clew.errors import ClewError

__all__ = ["EXIT_CODES", "INTERRUPTED", "exit_code", "report_errors"]

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
"""Exit codes by the names of error classes, so that this module need not import `clew.errors`."""


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that fails with this error: that of its kind (`EXIT_CODES` lists them), or 1 if
    its kind has none."""
    for kind in type(error).__mro__:
        if kind.__name__ in _BY_NAME and kind.__module__ in ("clew.errors", "clew.cli.stores"):
            return _BY_NAME[kind.__name__]
    return 1


def report_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap the function of a command, so that an error of Clew is printed on the standard error and becomes an exit
    code, without a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        from clew.errors import ClewError  # 6 ms, which `clew --help` is spared

        try:
            return command(*args, **kwargs)
        except ClewError as error:
            _print_error(error, kwargs.get("store"))
            raise typer.Exit(exit_code(error)) from None
        except MemoryError:
            from clew.cli.output.console import say

            say("Error: this process ran out of memory; nothing stored was harmed. Give it more.", err=True)
            raise typer.Exit(_BY_NAME["Unavailable"]) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of the output has seen enough, as with `clew ls | head`
            _discard_output()
            raise typer.Exit(0) from None

    return run


def _print_error(error: ClewError, store: Any) -> None:
    """Print an error and its notes on the standard error. Python calls that the error advises are replaced by shell
    commands. These commands name `store`, the value of the option --store, if it is a text."""
    from clew import advice
    from clew.cli.output.console import say
    from clew.cli.stores import shown_store  # imports the stores, which `clew --help` does not need

    said, thread_id = str(error), getattr(error, "thread_id", "") or ""
    if isinstance(store, str) and advice.for_shell(said, thread_id, store="x") != said:
        said = advice.for_shell(said, thread_id, store=shown_store(store))
    say(f"Error: {advice.for_shell(said, thread_id)}", err=True)
    for note in getattr(error, "__notes__", ()):
        say(f"  {note}", err=True)


def _discard_output() -> None:
    """Send what is still buffered for the standard output to the null device. This is called after the program that
    read the output has closed the pipe. Otherwise Python would report the closed pipe once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
