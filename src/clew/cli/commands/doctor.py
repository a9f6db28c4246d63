"""`clew doctor`: is all that Clew needs here, and in order?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import typer
from rich.text import Text

from clew.cli.commands.doctor_checks import Finding, check_machine, check_programs, check_store
from clew.cli.failures import told
from clew.cli.options import Json, Store
from clew.cli.output.console import console, print_json
from clew.errors import InvalidInput

__all__ = ["doctor"]

_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


@told
def doctor(
    live: Annotated[
        bool, typer.Option("--live", help="Also kill an agent with SIGKILL and resume it, on this store.")
    ] = False,
    provider: Annotated[
        list[str] | None,
        typer.Option("--provider", metavar="NAME", help="With --live: send one short prompt through it, which costs."),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Check that all Clew needs is here and in order.

    And say what to do where it is not. The store is written to and read back, with a thread that is removed again.
    Nothing else is changed. Nobody outside is asked, unless with --live and --provider. Ends with 1 if there is a
    problem.

    \b
    Examples:
      clew doctor
      clew doctor --live
    """
    from clew.providers.registry import wanted

    if provider and not live:
        raise InvalidInput("--provider sends a real prompt, which may cost something. Say --live with it.")
    asked = wanted(provider) if provider else []

    async def look() -> bool:
        sick = False
        async for finding in _findings(store, live, asked):
            sick |= finding.level == "problem"
            if json:
                print_json(finding._asdict())
            else:
                _print(finding)
        return sick

    if asyncio.run(look()):
        raise typer.Exit(1)


async def _findings(url: str | None, live: bool, asked: list[str]) -> AsyncIterator[Finding]:
    from clew.cli.commands.doctor_live import prove_resume

    for finding in check_machine():
        yield finding
    answers = True
    async for finding in check_store(url):
        answers &= finding.check not in ("store", "writing") or finding.level != "problem"
        yield finding
    if live and answers:
        yield await prove_resume(url)
    for finding in await check_programs(asked):
        yield finding


def _print(finding: Finding) -> None:

    line = Text.assemble((f"{finding.level:<8}", _STYLES[finding.level]), f" {finding.check}: {finding.what}")
    if finding.advice:
        line.append(f"\n{'':8} {finding.advice}", "dim" if finding.level == "ok" else "")
    console().print(line, soft_wrap=True)
