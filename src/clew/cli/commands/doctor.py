"""`clew doctor`: check the machine, the store and the coding agents' programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.deferred import asyncio, provider_registry, rich_text
from clew.cli.failures import report_errors
from clew.cli.options import Json, Store
from clew.cli.output.console import console, print_json
from clew.errors import InvalidInput

if TYPE_CHECKING:
    from clew.cli.commands.doctor_checks import Finding

__all__ = ["doctor"]

_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


@report_errors
def doctor(
    live: Annotated[
        bool, typer.Option("--live", help="Also kill an agent with SIGKILL and resume it, on this store.")
    ] = False,
    provider: Annotated[
        list[str] | None,
        typer.Option("--provider", metavar="NAME", help="With --live: send this agent one short prompt, which costs."),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Check this machine, the store and the coding agents.

    Says what to do about each problem. To check the store, it writes a thread, reads it back and removes it; nothing
    else is changed. No model is asked and no account is used, unless --live and --provider are both given. Exits with 1
    if there is a problem.

    \b
    Examples:
      clew doctor
      clew doctor --live
    """

    if provider and not live:
        raise InvalidInput("--provider sends a real prompt, which may cost money. Add --live to agree.")
    asked = provider_registry.wanted(provider) if provider else []

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
    """Run all checks of this machine, the store at `url` and the coding agents, and yield what each finds. With `live`,
    also prove that an agent can be resumed on the store, if the store answers and can be written. Each provider in
    `asked` gets a short prompt, which costs money."""
    # here, because these import all of Clew, which `clew doctor --help` does without
    from clew.cli.commands.doctor_checks import check_machine, check_programs, check_services, check_store
    from clew.cli.commands.doctor_live import prove_resume

    for finding in check_machine():
        yield finding
    answers = True
    async for finding in check_store(url):
        answers &= finding.check not in ("store", "writing") or finding.level != "problem"
        yield finding
    for finding in check_services(url):
        yield finding
    if live and answers:
        yield await prove_resume(url)
    for finding in await check_programs(asked):
        yield finding


def _print(finding: Finding) -> None:
    line = rich_text.Text.assemble((f"{finding.level:<8}", _STYLES[finding.level]), f" {finding.check}: {finding.what}")
    if finding.advice:
        line.append(f"\n{'':8} {finding.advice}", "dim" if finding.level == "ok" else "")
    console().print(line, soft_wrap=True)
