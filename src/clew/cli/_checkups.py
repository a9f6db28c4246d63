"""What `clew doctor` looks at on this machine: Python, extras, clock, locale, and the coding agents' programs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from clew.providers import Health

__all__ = ["Finding", "Level", "check_machine", "check_programs"]

Level = Literal["ok", "warning", "problem"]
_DAY = 86_400


class Finding(NamedTuple):
    """One line of the report."""

    check: str
    level: Level
    what: str
    advice: str = ""


def check_machine() -> Iterator[Finding]:
    yield _python()
    yield _extras()
    yield _clock()
    yield _locale()


def _python() -> Finding:
    import platform

    from clew import __version__

    what = f"Python {platform.python_version()}, Clew {__version__}, {platform.system()} {platform.machine()}"
    if sys.platform == "win32":
        return Finding("python", "warning", what, "Workspaces cannot be restored on Windows. Use Linux, macOS or WSL.")
    return Finding("python", "ok", what)


def _extras() -> Finding:
    """Which of the optional packages are there. None has to be: whoever needs one is told its name."""
    from clew import advice

    found, missing = [], []
    for extra, packages in _optional().items():
        versions = [_version(package) for package in packages]
        if all(versions):
            found.append(
                f"{extra} ({', '.join(f'{name} {known}' for name, known in zip(packages, versions, strict=True))})"
            )
        else:
            missing.append(extra)
    way = f"To add one of {', '.join(missing)}: {advice.install(missing[0])}" if missing else ""
    return Finding("extras", "ok", ", ".join(found) or "none installed", way)


def _optional() -> dict[str, list[str]]:
    """The packages of each extra, as this installation names them."""
    import re
    from importlib.metadata import PackageNotFoundError, requires

    try:
        stated = requires("clew") or []
    except PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {}
    for line in stated:
        named = re.match(r"""([A-Za-z0-9._-]+)(?:\[[^\]]*\])?[^;]*;.*\bextra == ["']([^"']+)["']""", line)
        if named and named[1].lower() != "clew":
            packages = found.setdefault(named[2], [])
            packages += [named[1]] if named[1] not in packages else []
    return {extra: found[extra] for extra in sorted(found) if extra != "all"}


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _clock() -> Finding:
    """Leases and the grace of gc go by this clock. It cannot be before Clew was installed."""
    import clew

    now = time.time()
    installed = os.stat(clew.__file__).st_mtime
    shown = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if now < installed - _DAY:
        return Finding("clock", "problem", f"{shown}, which is before Clew was installed here", "Set the clock.")
    return Finding("clock", "ok", shown)


def _locale() -> Finding:
    names, output = sys.getfilesystemencoding(), sys.stdout.encoding or "unknown"
    what = f"file names {names}, output {output}"
    if any(encoding.lower().replace("-", "") != "utf8" for encoding in (names, output)):
        return Finding(
            "locale", "warning", what, "Set LANG to one with UTF-8, or PYTHONUTF8=1: some text is not shown."
        )
    return Finding("locale", "ok", what)


async def check_programs(asked: list[str]) -> list[Finding]:
    """Claude Code, Codex, opencode and others that are known. Those that are `asked` get one short prompt, which costs what
    such a prompt costs."""
    from clew.providers import check_providers

    health = {one.provider: one for one in await check_providers()}
    if asked:
        health |= {one.provider: one for one in await check_providers(asked, live=True)}
    return [_program(one, one.provider in asked) for one in health.values()]


def _program(health: Health, asked: bool) -> Finding:
    """That one is not ready is a problem only for whoever asked for it."""
    from clew.providers import find_provider
    from clew.providers.status import is_untried

    worst: Level = "problem" if asked else "warning"
    provider = find_provider(health.provider)
    title = provider.title
    if health.answers is False:
        return Finding(health.provider, "problem", f"{title} gave no answer to a prompt", health.problem)
    if health.program is None and asked:
        return Finding(health.provider, "problem", f"{title} is not here", health.problem)
    if health.program is None:
        return Finding(health.provider, "ok", f"{title} is not here", f"Only if you want to use it: {health.problem}")
    if health.program.problem:
        return Finding(health.provider, worst, f"{title} is here, and cannot be run", health.problem)
    what = f"{title} {health.program.version}, {health.program.path}"
    if health.account:
        what += f", by {health.account}"
    if health.limited_until is not None and health.limited_until > datetime.now(UTC):
        until = f"{health.limited_until.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        return Finding(health.provider, worst, f"{what}: its limit is reached", f"Wait until {until}.")
    if is_untried(provider, health.program.version):
        what += f" (newer than {provider.newest}, the newest that this version of Clew was tried with)"
    if not health.ready or health.problem:
        return Finding(health.provider, worst, what, health.problem)
    return Finding(health.provider, "ok", what + (", answered a prompt" if health.answers else ""))
