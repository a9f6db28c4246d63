"""Where a command prints: consoles, JSON lines, hints, progress bars, and questions to the user.

rich is imported inside functions: it takes 50 ms, and a command whose output goes into a pipe does without it.
"""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from clew._runtime.text import visible, visible_json
from clew.cli.deferred import msgspec
from clew.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["agreed", "confirm", "console", "errors", "hint", "json_line", "print_json", "read_line", "say", "working"]


@functools.cache
def _shown_console() -> Any:
    """Return a class of rich consoles that make control characters visible in everything that they print."""
    from rich.console import Console
    from rich.text import Text

    class Shown(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*(self._shown(each) for each in objects), **options)

        def _shown(self, value: Any) -> Any:
            if isinstance(value, Text) and visible(value.plain) != value.plain:
                parts = [(visible(part.text), part.style or "") for part in value.render(self)]
                return Text.assemble(*parts, no_wrap=value.no_wrap, overflow=value.overflow, end=value.end)
            return visible(value) if isinstance(value, str) else value

    return Shown


def console() -> Console:
    """Return the rich console for results, on the standard output. In a pipe it has no colours and breaks no lines."""

    class Output(_shown_console()):  # type: ignore[misc] # made when it is needed
        def on_broken_pipe(self) -> None:
            """Raise the `BrokenPipeError` that rich is handling. Without this method rich would end the process with
            code 1. `report_errors`, which wraps every command, then ends the command without a message."""
            raise

    made = Output(highlight=False)
    if not made.is_terminal:
        made = Output(highlight=False, width=10_000, soft_wrap=True)
    return made


def errors() -> Console:
    """Return the rich console for progress, hints and questions, on the standard error."""
    made: Console = _shown_console()(stderr=True, highlight=False)
    return made


def say(text: object = "", *, err: bool = False, dim: bool = False) -> None:
    """Print a line on the standard output, or on the standard error with `err`. Control characters in it are made
    visible, so that no text of a thread can control the terminal."""
    shown = visible(str(text))
    typer.echo(typer.style(shown, dim=True) if dim else shown, err=err)


def json_line(value: Any) -> str:
    """Return a value as JSON, without a line break, and with every character escaped that a terminal would obey."""
    return visible_json(msgspec.json.encode(value, enc_hook=str).decode())


def print_json(value: Any) -> None:
    """Write a value as JSON on a line of its own, and flush it."""

    sys.stdout.write(json_line(value) + "\n")
    sys.stdout.flush()


@contextmanager
def working(what: str, total: int | None = None) -> Iterator[Any]:
    """Show a progress bar on the standard error for the length of the block, if the standard error is a terminal.
    `what` is the text in front of the bar, `total` the number of steps if it is known. Yields a function `tick(done,
    total)`, which sets how many steps are done and how many there are."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(
        *columns,
        console=errors(),
        transient=True,
        disable=not sys.stderr.isatty(),
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:
        task = progress.add_task(what, total=total)

        def tick(done: int, total: int | None = None) -> None:
            progress.update(task, completed=done, total=total)

        yield tick


def hint(text: str) -> None:
    """Print a dim line on the standard error, where it does not disturb programs that read the output."""
    say(text, err=True, dim=True)


def confirm(question: str, yes: bool) -> None:
    """Ask the user the question, and return if the answer is yes. Otherwise say that nothing was changed, and exit the
    command with the code 1. If `yes` is set, ask nothing and return."""
    if not agreed(question, yes):
        say("Nothing was changed.", err=True)
        raise typer.Exit(1)


def agreed(question: str, yes: bool) -> bool:
    """Ask the user a question, and return whether the answer is yes. If `yes`, the value of the option --yes, is set,
    return True without asking.

    Raises `UsageError`, which names --yes, if there is no terminal to ask at.
    """
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal to ask at. Add --yes to agree.")
    return read_line(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def read_line(shown: str) -> str:
    """Print `shown` on the standard error, and return the line that the user enters, with its line break. Returns an
    empty text if the input has ended.

    Ctrl+C raises `KeyboardInterrupt` at once. The signal handler of a running event loop is replaced meanwhile, because
    it would wait for the end of the line.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(visible(shown))
        sys.stderr.flush()
        return sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)
