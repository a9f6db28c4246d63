"""What a command prints: tables and colours for people on a terminal, plain lines in pipes, JSON for programs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from clew.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["agreed", "confirm", "console", "errors", "hint", "print_json", "working"]


def console() -> Console:
    """For what was asked for. Colour only on a terminal, and as wide as needed in a pipe."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            """As all else that is written: an error, which ends the command without a word."""
            raise

    made = Output(highlight=False)
    if not made.is_terminal:
        made = Output(highlight=False, width=10_000, soft_wrap=True)
    return made


def errors() -> Console:
    """For all that was not: progress, hints, questions."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One object, on a line of its own."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


@contextmanager
def working(what: str, total: int | None = None) -> Iterator[Any]:
    """A progress bar on the standard error, where that is a terminal: `tick(done, total)` moves it."""
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
    """A line that helps, and that no program has to skip."""
    typer.secho(text, err=True, dim=True)


def confirm(question: str, yes: bool) -> None:
    """Return if the user agrees; else end the command, with nothing done."""
    if not agreed(question, yes):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(1)


def agreed(question: str, yes: bool) -> bool:
    """Whether the user says yes, or said so with `--yes`. Without a terminal nobody can be asked: that is an error that
    names the option."""

    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal to answer at: say --yes if it is meant.")
    return _answer(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _answer(shown: str) -> str:
    """Ctrl+C ends the question at once, also within an event loop, which would hear of it only after the answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(shown)
        sys.stderr.flush()
        return sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)
