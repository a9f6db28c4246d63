"""`clew demo`: kill an agent with SIGKILL, resume it, and show what was lost or repeated."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.failures import report_errors
from clew.cli.output.console import say

if TYPE_CHECKING:
    from clew.demo.views import View

__all__ = ["demo"]


@report_errors
def demo(
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Work in this new or empty folder, and keep everything there."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain text without colours and animation.")] = False,
) -> None:
    """Kill an agent inside a tool, and resume it, offline.

    Uses SIGKILL, a new process and SQLite, and takes a few seconds. Compares the result with an undisturbed run, and
    exits with 1 if anything was lost or repeated.

    \b
    Examples:
      clew demo --keep ./demo
    """
    from clew.demo import run_demo

    with _folder(keep) as folder:
        try:
            report = run_demo(Path(folder), _view(plain))
        except OSError as error:
            say(f"Error: {error}", err=True)
            raise typer.Exit(1) from None
    if keep is not None:
        say(f"\nAll of it is in {folder}")
    if not report.is_whole:
        raise typer.Exit(1)


def _folder(keep: Path | None) -> AbstractContextManager[str]:
    """Return the folder to work in, as a context manager: a temporary one, deleted at the end, or `keep`, which stays.
    Raises `typer.BadParameter` if `keep` exists and is not an empty folder."""
    if keep is None:
        return tempfile.TemporaryDirectory(prefix="clew-demo-")
    if keep.exists() and not (keep.is_dir() and not any(keep.iterdir())):
        raise typer.BadParameter(f"{keep} is not a new or empty folder. Name another.", param_hint="--keep")
    return nullcontext(os.path.abspath(keep))


def _view(plain: bool) -> View:
    """Return the `View` that shows the demo. It prints plain lines if `plain` is set, in a pipe, and on a terminal that
    knows no control sequences. Otherwise it shows colours and progress bars."""
    from clew.demo.views import PlainView

    if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return PlainView(sys.stdout)
    from rich.console import Console

    from clew.demo.pretty import PrettyView

    return PrettyView(Console(file=sys.stdout))
