"""`clew sessions`: list the sessions that coding agents keep on this machine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew._runtime.text import ago, one_line, size
from clew.cli.deferred import providers
from clew.cli.failures import report_errors
from clew.cli.options import Json
from clew.cli.output.console import errors, print_json, say
from clew.cli.output.tables import Cell, Column, print_table
from clew.cli.setups import folder_of

if TYPE_CHECKING:
    from clew.providers import NativeSession

__all__ = ["sessions"]

_LONGEST_TITLE = 80


@report_errors
def sessions(
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            "-p",
            metavar="NAME",
            help="Only sessions of claude_code, codex or opencode. Repeatable.",
        ),
    ] = None,
    cwd: Annotated[
        str | None, typer.Option("--cwd", metavar="DIR", help="Only sessions that were started in this folder.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many at most.")] = 30,
    json: Json = False,
) -> None:
    """List the sessions of Claude Code, Codex and opencode.

    Lists all sessions on this machine, the newest first, whether Clew has
    seen them or not. `clew adopt` takes one into a thread, `clew move`
    carries it to another agent. Exits with 1, and says why, if the sessions
    of an agent could not all be read.

    \b
    Examples:
      clew sessions
      clew sessions --provider codex --cwd . --json
    """

    logging.getLogger("clew.providers").addHandler(logging.NullHandler())  # the problems are printed below
    folder = None if cwd is None else folder_of(cwd, "--cwd")
    found = providers.discover(provider or None, cwd=folder)
    shown = found.sessions[:limit]
    if json:
        for session in shown:
            print_json(_object(session))
    elif shown:
        columns = [
            Column("provider"),
            Column("id"),
            Column("title", gives_way=True),
            Column("exchanges", right=True),
            Column("cwd", gives_way=True, spare=1),
            Column("age", right=True),
            Column("size", right=True, spare=2),
        ]
        print_table(columns, [_row(session) for session in shown])
    elif not found.problems:
        errors().print("No sessions of coding agents on this machine.", style="dim")
    if len(found) > limit and not json:
        errors().print(f"{len(found) - limit} more: --limit {len(found)}", style="dim")
    for problem in found.problems:
        say(f"Error: {problem.provider}: its sessions could not all be listed: {problem.reason}", err=True)
    if found.problems:
        raise typer.Exit(1)


def _object(session: NativeSession) -> dict[str, Any]:
    """Return a coding agent's session as the object that --json prints."""
    return {
        "provider": session.provider,
        "id": session.key,
        "title": session.title,
        "turns": session.exchanges,
        "cwd": session.cwd,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "size": session.size,
        "path": str(session.path),
    }


def _row(session: NativeSession) -> list[Cell]:
    changed = session.updated_at or session.created_at
    return [
        Cell(session.provider, "cyan"),
        Cell(session.key),
        Cell(one_line(session.title, _LONGEST_TITLE)),
        Cell("" if session.exchanges is None else str(session.exchanges)),
        Cell(one_line(session.cwd), "dim"),
        Cell("" if changed is None else ago(changed)),
        Cell(size(session.size) if session.size else "", "dim"),
    ]
