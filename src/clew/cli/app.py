"""`clew` and its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from clew import __version__
from clew.cli.demo import demo
from clew.cli.serve import serve

__all__ = ["app", "main"]

app = typer.Typer(no_args_is_help=True, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
app.command()(demo)
app.command()(serve)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clew {__version__}")
        raise typer.Exit


@app.callback()
def clew(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    """Durable AI agents: stopped in any way, resumed exactly where they were.

    Example: clew demo
    """


def main() -> None:
    app(prog_name="clew")
