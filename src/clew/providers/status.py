"""Checks the providers on this machine: whether they are installed, logged in, within their limits, and, on request,
whether they answer."""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from clew import advice
from clew.errors import ProviderOutdated
from clew.providers.base import Health, Job, Place, Program, Provider
from clew.providers.events import Failed, Finished
from clew.providers.process import CannotRun, run
from clew.providers.registry import PROVIDERS, default_place, find_provider, wanted

__all__ = ["check_providers", "is_untried", "outdated"]


log = logging.getLogger("clew.providers")
_PROMPT = "Answer with the one word OK. Use no tools."


async def check_providers(
    providers: str | Iterable[str] | None = None,
    *,
    live: bool = False,
    place: Place | None = None,
    timeout: float = 60,
) -> list[Health]:
    """Check these providers, and return one result for each, in the given order; by default for all known ones. A
    provider that cannot be checked is reported in its result; only an unknown name raises an error. `place` gives the
    environment and so the home folder to look in, by default those of this process.

    Only what is on this machine is read; no network request is made. With `live=True` each provider that seems ready is
    also asked one short prompt, in an empty folder with permission `read`, for at most `timeout` seconds. That costs as
    much as any such prompt and leaves a session of the provider behind.
    """
    place = place or default_place()
    return list(await asyncio.gather(*(_check(name, place, live, timeout) for name in wanted(providers))))


async def _check(name: str, place: Place, live: bool, timeout: float) -> Health:
    try:
        provider = find_provider(name)(place)
        program, health = await asyncio.to_thread(_look, provider)
        if live and program is not None and health.ready:
            health = await _probed(provider, program, health, timeout)
    except Exception as error:  # report any error, and check the other providers all the same
        reason = str(error) or type(error).__name__
        log.debug("%s: it could not be checked", name, exc_info=True)
        return Health(provider=name, answers=False if live else None, problem=reason)
    return health


def _look(provider: Provider) -> tuple[Program | None, Health]:
    program = provider.program()
    if program is not None and program.problem:
        problem = f"it cannot be run: {program.problem}. Install it again: {provider.install}"
        return program, Health(provider=provider.name, program=program, problem=problem)
    health = provider.check(program)
    too_old = outdated(provider, program) if program is not None else None
    return program, health if too_old is None else msgspec.structs.replace(health, outdated=True, problem=str(too_old))


async def _probed(provider: Provider, program: Program, health: Health, timeout: float) -> Health:
    """Ask the provider one short prompt in a temporary folder, for at most `timeout` seconds. Returns `health`, what is
    known of the provider so far, with the outcome added: whether it answered, whether it is logged in, and what went
    wrong."""
    with tempfile.TemporaryDirectory(prefix="clew-check-") as folder:
        elsewhere = _moved(provider, folder)
        try:
            async with asyncio.timeout(timeout):
                ending = await _ask(elsewhere, program)
        except TimeoutError:
            return msgspec.structs.replace(health, answers=False, problem=f"no answer within {timeout:g} s.")
    if isinstance(ending, Finished):
        return msgspec.structs.replace(health, logged_in=True, answers=True, problem="")
    logged_in = False if ending.kind == "login" else health.logged_in
    return msgspec.structs.replace(health, logged_in=logged_in, answers=False, problem=ending.reason)


def _moved(provider: Provider, folder: str) -> Provider:
    """Return the same provider for another working folder. Symbolic links in the folder's path are resolved, because
    that is the path which the program will see."""
    return type(provider)(Place(Path(folder).resolve(), provider.place.env))


async def _ask(provider: Provider, program: Program) -> Finished | Failed:
    job = Job(prompt=_PROMPT, key=provider.new_key(), permissions="read")
    await provider.prepare(program, job)
    reader = provider.reader(job)
    endings: list[Finished | Failed] = []

    def take(line: bytes) -> None:
        endings.extend(said for said in reader.read(line) if isinstance(said, Finished | Failed))

    try:
        ended = await run(provider.command(program, job), provider.place, take)
    except CannotRun as error:
        return Failed("failed", f"{error}. Install it again: {provider.install}")
    endings.extend(said for said in reader.end(ended.status, ended.stderr) if isinstance(said, Finished | Failed))
    return endings[0] if endings else Failed("stopped", f"it ended with status {ended.status} and said nothing")


_NUMBERS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def outdated(provider: Provider, program: Program) -> ProviderOutdated | None:
    """Return the error to raise for a program that is too old for Clew; None if it is not too old, or if its version is
    unknown."""
    found, oldest = _numbers(program.version), _numbers(type(provider).oldest)
    if found is None or oldest is None or found >= oldest:
        return None
    name = type(provider).name
    upgrade = advice.install_program(name, "latest") if name in PROVIDERS else provider.install
    return ProviderOutdated(name, program.version, type(provider).oldest, upgrade, str(program.path))


def is_untried(provider: type[Provider], version: str) -> bool:
    """Return whether a version of a provider's program is newer than those that Clew was tested with. Clew uses such a
    program all the same, because programs seldom change so much."""
    found, newest = _numbers(version), _numbers(provider.newest)
    return found is not None and newest is not None and found > newest


def _numbers(version: str) -> tuple[int, ...] | None:
    """Return the numbers in a version, such as (2, 1, 0). Returns None for a text without any, and for 0.0.0, which
    private builds have."""
    found = _NUMBERS.search(version)
    numbers = tuple(int(number or 0) for number in found.groups()) if found else ()
    return numbers if any(numbers) else None
