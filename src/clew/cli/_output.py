"""What a command prints: tables and colours for people on a terminal, plain lines in pipes, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clew._runtime.text import ago

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ago", "console", "count", "dollars", "errors", "print_json", "size", "working"]


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
