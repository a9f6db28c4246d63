"""Questions before something that cannot be undone, or not easily."""

from __future__ import annotations

import signal
import sys

import typer

__all__ = ["agreed", "confirm"]


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
