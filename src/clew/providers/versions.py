"""Which versions of a coding agent's program can be relied on.

An older program may take a prompt, answer it and forget it: Claude Code up to 2.1.75 writes each resumed prompt to another
file than the one that it resumed. So each provider names the oldest version that keeps what it is told, and an older one is
refused before it is asked anything.
"""

from __future__ import annotations

import re

from clew import advice
from clew.errors import ProviderOutdated
from clew.providers.base import Program, Provider
from clew.providers.registry import PROVIDERS

__all__ = ["is_untried", "outdated"]

_NUMBERS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def outdated(provider: Provider, program: Program) -> ProviderOutdated | None:
    """The refusal of a program that is too old; None if it is not, or does not say which version it is."""
    found, oldest = _numbers(program.version), _numbers(type(provider).oldest)
    if found is None or oldest is None or found >= oldest:
        return None
    name = type(provider).name
    upgrade = advice.install_program(name, "latest") if name in PROVIDERS else provider.install
    return ProviderOutdated(name, program.version, type(provider).oldest, upgrade, str(program.path))


def is_untried(provider: type[Provider], version: str) -> bool:
    """Whether a version is newer than all that Clew was tried with. It is taken as it is: programs seldom change so much."""
    found, newest = _numbers(version), _numbers(provider.newest)
    return found is not None and newest is not None and found > newest


def _numbers(version: str) -> tuple[int, ...] | None:
    """The numbers of a version; None for a text without any, and for 0.0.0, by which builds of one's own go."""
    found = _NUMBERS.search(version)
    numbers = tuple(int(number or 0) for number in found.groups()) if found else ()
    return numbers if any(numbers) else None
