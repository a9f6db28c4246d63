"""Runs a prompt through the real program, as a session does."""

from __future__ import annotations

from clew.providers.base import Job, Place
from clew.providers.events import Finished, ProviderEvent
from clew.providers.opencode import OpenCode
from clew.providers.process import run
from tests.limits import PATIENCE

__all__ = ["ask", "asked"]


async def ask(place: Place, job: Job) -> list[ProviderEvent]:
    """All that happened, to the end of the program."""
    provider = OpenCode(place)
    program = provider.program()
    assert program is not None
    await provider.prepare(program, job)
    reader = provider.reader(job)
    happened: list[ProviderEvent] = []
    ended = await run(
        provider.command(program, job), place, lambda line: happened.extend(reader.read(line)), timeout=PATIENCE
    )
    happened.extend(reader.end(ended.status, ended.stderr))
    return happened


async def asked(place: Place, job: Job) -> Finished:
    """The answer, or a failed test."""
    last = (await ask(place, job))[-1]
    assert isinstance(last, Finished), last
    return last
