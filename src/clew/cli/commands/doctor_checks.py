"""What `clew doctor` checks: the machine, the coding agents' programs and the store."""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import clew
from clew import Thread, __version__, advice
from clew._runtime.text import size
from clew.agent.handles import without_credentials
from clew.checkpointers import HeadQuery, open_checkpointer
from clew.checkpointers.http.protocol import PROTOCOL_HEADER
from clew.checkpointers.http.services import running_services
from clew.checkpointers.registry import default_url
from clew.checkpointers.sqlite.connection import library
from clew.cli.stores import shown_store
from clew.errors import ClewError
from clew.log import MessageAdded
from clew.messages import user
from clew.providers import check_providers, find_provider
from clew.providers.status import is_untried

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer
    from clew.providers import Health

__all__ = [
    "Finding",
    "Level",
    "check_machine",
    "check_programs",
    "check_services",
    "check_store",
    "scratch_id",
    "shown_url",
]

Level = Literal["ok", "warning", "problem"]
_DAY = 86_400


class Finding(NamedTuple):
    """What one check of `clew doctor` found, and what to do about it. It is one line of the report."""

    check: str
    level: Level
    what: str
    advice: str = ""


def check_machine() -> Iterator[Finding]:
    """Check Python, the installed extras of Clew, the clock and the locale. Yields a finding (a line of the report) for
    each."""
    yield _python()
    yield _extras()
    yield _clock()
    yield _locale()


def _python() -> Finding:
    what = (
        f"Python {platform.python_version()}, Clew {__version__}, {library()}, {platform.system()} {platform.machine()}"
    )
    if sys.platform == "win32":
        return Finding("python", "warning", what, "Workspaces cannot be restored on Windows. Use Linux, macOS or WSL.")
    return Finding("python", "ok", what)


def _extras() -> Finding:
    """Return a finding (a line of the report) that lists the installed extras, which are Clew's optional dependencies.
    A missing extra is not reported as a problem: the feature that needs it says how to install it."""
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
    """Return the packages that each extra of Clew consists of, by the extra's name. They are read from the metadata of
    the installed distribution."""
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
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _clock() -> Finding:
    """Check that this machine's clock is not more than a day behind the time at which Clew was installed, and return a
    finding (a line of the report). If the clock is wrong, leases expire too early or too late, and `clew gc` may delete
    unused values too early or too late."""
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
            "locale", "warning", what, "Set LANG to a UTF-8 locale, or PYTHONUTF8=1. Some text cannot be shown now."
        )
    return Finding("locale", "ok", what)


async def check_programs(asked: list[str]) -> list[Finding]:
    """Check the program of every known provider, and return a finding (a line of the report) for each. A provider in
    `asked` also gets a short prompt, which costs money."""
    health = {one.provider: one for one in await check_providers()}
    if asked:
        health |= {one.provider: one for one in await check_providers(asked, live=True)}
    return [_program(one, one.provider in asked) for one in health.values()]


def _program(health: Health, asked: bool) -> Finding:
    """Return the finding (a line of the report) about one provider. `health` is the result of checking the provider.
    `asked` says that the user named this provider: only then is it a problem if the provider is not ready."""
    worst: Level = "problem" if asked else "warning"
    provider = find_provider(health.provider)
    title = provider.title
    if health.answers is False:
        return Finding(health.provider, "problem", f"{title} gave no answer to a prompt", health.problem)
    if health.program is None and asked:
        return Finding(health.provider, "problem", f"{title} is not installed", health.problem)
    if health.program is None:
        return Finding(
            health.provider, "ok", f"{title} is not installed", f"Only if you want to use it: {health.problem}"
        )
    if health.program.problem:
        return Finding(health.provider, worst, f"{title} is installed, but cannot be run", health.problem)
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


_USUAL_PLACE = "http://127.0.0.1:8420"


def check_services(url: str | None) -> Iterator[Finding]:
    """Find services of Clew, and yield a finding (a line of the report) for each: a warning if the service lets
    everybody in without a token. Three places are looked at: the services that this user runs on this machine, each of
    which writes a file with its URL; the store at `url`, if that is a service; and the usual port, where a service of
    another user may listen."""
    store = (url or default_url()).partition("?")[0].rstrip("/")
    places = [*running_services(), *([store] if store.startswith(("http://", "https://")) else []), _USUAL_PLACE]
    for place in dict.fromkeys(places):
        if "?socket=" in place:
            yield Finding("service", "ok", f"{place} is open to your user alone")
            continue
        is_open = _is_open(place)
        if is_open:
            what = f"{place} asks for no token: everybody who reaches it can read, change and delete its threads"
            way = "Stop it and start it without --no-token. What others wrote there, do not resume before you have read it."
            yield Finding("service", "warning", what, way)
        elif is_open is not None:
            yield Finding("service", "ok", f"{place} asks for a token")


def _is_open(place: str) -> bool | None:
    """Return whether the service at this URL answers without a token. None if no service of Clew is there."""
    try:
        with _DIRECT.open(f"{place}/v1/threads/YQ", timeout=_LONGEST_PROBE) as answer:
            headers, status = answer.headers, answer.status
    except urllib.error.HTTPError as error:
        headers, status = error.headers, error.code
    except (OSError, ValueError):
        return None
    return None if PROTOCOL_HEADER not in headers else status in (200, 404)


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs directly, without a proxy that the environment names. A proxy would send the request from another machine,
and so might reach another service or none."""
_LONGEST_PROBE = 2.0
"""Seconds to wait for a service that may not be there."""
_SLOW = 0.5
"""The most seconds that an append to a thread may take without a warning. An agent waits for such an append in every
turn."""
_LITTLE, _NONE = 2**30, 100 * 2**20
"""Bytes of free disk space. Less than `_LITTLE` is a warning, less than `_NONE` a problem."""
_APART = 2.0
"""Seconds by which two clocks may differ without a warning."""


async def check_store(url: str | None) -> AsyncIterator[Finding]:
    """Check that the store answers and returns what was written to it, and that its newest thread is not from the
    future. For a store on a disk, also check free space, file permissions and the disk's clock. Yields a finding (a
    line of the report) for each check.

    If the store fails with an error, the last finding has that error.
    """
    where = shown_url(url)
    try:
        async with open_checkpointer(url) as store:
            began = time.perf_counter()
            newest = [head async for head in store.heads(HeadQuery(limit=1))]
            took = time.perf_counter() - began
            sealed = f"sealed with key {store.keys.current}" if store.keys is not None else "not encrypted"
            yield Finding("store", "ok", f"{where}: answers in {took * 1000:.0f} ms, {sealed}")
            yield await _round_trip(store)
            for finding in _place(store, url):
                yield finding
            if newest:
                yield _store_clock(newest[0].updated_at)
    except ClewError as error:
        yield Finding("store", "problem", f"{where}: {error}", "Or name another store with --store.")


def shown_url(url: str | None) -> str:
    """Return the URL of a store without its credentials, to show it to the user. For None, return the URL of the
    default store."""
    given = default_url() if url is None else url
    return without_credentials(given) or f"{given.partition(':')[0]}:…"


def scratch_id() -> str:
    """Return a new id for a temporary thread. Listings leave out threads with such an id."""
    return f"clew:doctor:{secrets.token_hex(8)}"


async def _round_trip(store: Checkpointer) -> Finding:
    """Write a thread to the store, read it back, compare and delete it. One of its messages is large enough to be
    stored as a blob. Returns a finding (a line of the report), which says whether this worked."""
    thread_id, text = scratch_id(), secrets.token_hex(2**19)
    try:
        async with Thread.open(store, thread_id, label="clew doctor") as thread:
            await thread.append(MessageAdded(user(text)))
            began = time.perf_counter()
            await thread.append(MessageAdded(user("small")))
            took = time.perf_counter() - began
            written = thread.checkpoint.messages
        whole = (await Thread.load(store, thread_id)).messages == written
        await Thread.purge(store, thread_id)
    except ClewError as error:
        with suppress(ClewError):
            await store.delete(thread_id)
        return Finding("writing", "problem", str(error), "Threads cannot be stored here until this is fixed.")
    if not whole:
        return Finding("writing", "problem", "what was read is not what was written", "Use another store.")
    what = f"a thread was written, read back and removed; an append takes {took * 1000:.0f} ms"
    if took > _SLOW:
        return Finding("writing", "warning", what, "Agents wait for it in every turn. Is there a store nearby?")
    return Finding("writing", "ok", what)


def _place(store: Checkpointer, url: str | None) -> Iterator[Finding]:
    """Check the disk of a store that keeps its data in files: free space, permissions and clock. Yields a finding (a
    line of the report) for each, and nothing for other kinds of store. `url` is the store's URL, for a command that a
    finding advises."""
    here = [path for path in store.own_files if path.exists()]
    if not here:
        return
    folder = here[0] if here[0].is_dir() else here[0].parent
    yield _disk(folder, url)
    if sys.platform != "win32":
        yield _permissions(here)
    try:
        yield _file_clock(folder)
    except OSError as error:
        yield Finding("file times", "warning", f"{folder}: {error.strerror}", "Make the folder writable for this user.")


def _disk(folder: Path, url: str | None) -> Finding:
    free = shutil.disk_usage(folder).free
    what = f"{size(free)} free at {folder}"
    if free < _NONE:
        return Finding(
            "disk", "problem", what, "Free some space: appends fail when it is full. Nothing stored is harmed."
        )
    if free < _LITTLE:
        collect = advice.collect(store=shown_store(url))
        return Finding(
            "disk", "warning", what, f"Free some space. To delete stored values that no thread needs: {collect}"
        )
    return Finding("disk", "ok", what)


def _permissions(paths: list[Path]) -> Finding:
    open_to_others = [path for path in paths if path.stat().st_mode & 0o077]
    if not open_to_others:
        return Finding("privacy", "ok", "nobody else on this machine can read the store's files")
    command = advice.make_private(*map(str, open_to_others))
    return Finding("privacy", "warning", "others on this machine can get at the store's files", command)


def _file_clock(folder: Path) -> Finding:
    """Check that a new file in the folder gets the time of this machine's clock, and return a finding (a line of the
    report). On a network disk the file gets the time of another machine."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"now")
        file.flush()
        apart = os.fstat(file.fileno()).st_mtime - time.time()
    if abs(apart) > _APART:
        what = f"the disk's clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} this machine's"
        return Finding("file times", "warning", what, "Let both take the time from the network.")
    return Finding("file times", "ok", "the disk's clock is this machine's")


def _store_clock(newest: datetime) -> Finding:
    """Check that `newest`, the time at which the newest thread was changed, is not in the future, and return a finding
    (a line of the report). If it is in the future, the clock of a machine is wrong."""
    ahead = newest - datetime.now(UTC)
    if ahead > timedelta(seconds=_APART):
        what = f"the newest thread was changed {ahead.total_seconds():.0f} s from now"
        return Finding(
            "clocks",
            "warning",
            what,
            "A clock is wrong, here or where it was written. Set it: ages and prune go by it.",
        )
    return Finding("clocks", "ok", "no thread was changed in the future")
