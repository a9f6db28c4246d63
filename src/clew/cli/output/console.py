"""What a command prints: tables and colours for people on a terminal, plain lines in pipes, JSON for programs."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from clew._runtime.text import ago

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "ago",
    "agreed",
    "clean",
    "confirm",
    "console",
    "count",
    "cut",
    "dollars",
    "errors",
    "hint",
    "many",
    "one_line",
    "print_json",
    "size",
    "working",
]


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


def dollars(cost: float | None) -> str:
    """Nobody knows the total if nobody knows a price."""
    return "?" if cost is None else f"${cost:.4f}" if 0 < cost < 0.01 else f"${cost:.2f}"


def count(number: int) -> str:
    """A number of tokens, short: 950, 12.3k, 4.5M."""
    for unit, length in (("M", 1_000_000), ("k", 1_000)):
        if number >= length:
            return f"{number / length:.1f}{unit}"
    return str(number)


def size(number: int) -> str:
    """A number of bytes, short."""
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def hint(text: str) -> None:
    """A line that helps, and that no program has to skip."""
    typer.secho(text, err=True, dim=True)


def many(count: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""What moves a cursor, sets a colour, a title or a clipboard."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Among them those that turn the direction of writing, and so can make a text look like another."""


def clean(text: str) -> str:
    """Without anything that a terminal would obey. Line breaks and tabs stay."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def one_line(text: str, longest: int | None = None) -> str:
    """Clean, on one line, and no longer than this."""
    return cut(" ".join(clean(text).split()), longest)


def cut(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else text[: max(0, longest - 1)].rstrip() + "…"


def confirm(question: str, yes: bool) -> None:
    """Return if the user agrees; else end the command, with nothing done."""
    if not agreed(question, yes):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(1)


def agreed(question: str, yes: bool) -> bool:
    """Whether the user says yes, or said so with `--yes`. Without a terminal nobody can be asked: that is an error that
    names the option."""
    from clew.errors import UsageError

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
