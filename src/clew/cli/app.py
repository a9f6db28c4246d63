"""`clew` and its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from clew import __version__
from clew.cli._failures import EXIT_CODES
from clew.cli._lazy import LazyGroup

__all__ = ["app", "main"]

_CODES = [f"{code} {meaning}" for code, meaning in EXIT_CODES.items()]
_EPILOG = f"""\
`clew COMMAND --help` has examples. The store is --store URL, else CLEW_STORE,
else a file of your own. Completion for your shell: clew --install-completion.
The version: clew --version.
Exit codes: {", ".join(_CODES[:5])},
            {", ".join(_CODES[5:])}."""

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)


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
