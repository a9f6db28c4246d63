"""What `clew doctor` looks at in a store: does it answer, does it keep what it is given, is there room, who can read it."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from clew.cli._checkups import Finding

if TYPE_CHECKING:
    from clew.checkpointers import Checkpointer

__all__ = ["check_store", "scratch_id", "shown_url"]

_SLOW = 0.5
"""Seconds for an append, from which on the store is what an agent waits for."""
_LITTLE, _NONE = 2**30, 100 * 2**20
"""Bytes of free disk."""
_APART = 2.0
"""Seconds by which two clocks may differ."""


async def check_store(url: str | None) -> AsyncIterator[Finding]:
    """Everything about the store. One that does not answer is not asked for more."""
    from clew.checkpointers import HeadQuery, open_checkpointer
    from clew.errors import ClewError

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
                yield _clock(newest[0].updated_at)
    except ClewError as error:
        yield Finding("store", "problem", f"{where}: {error}", "Or name another store with --store.")


def shown_url(url: str | None) -> str:
    """Where the store is, without its credentials."""
    from clew.agent.handles import without_credentials
    from clew.checkpointers.registry import default_url

    given = default_url() if url is None else url
    return without_credentials(given) or f"{given.partition(':')[0]}:…"


def scratch_id() -> str:
    """A thread that no listing shows."""
    return f"clew:doctor:{secrets.token_hex(8)}"


async def _round_trip(store: Checkpointer) -> Finding:
    """A thread written, read back, compared, and removed again; with a value that is large enough to be kept apart."""
    from clew import Thread
    from clew.errors import ClewError
    from clew.log import MessageAdded
    from clew.messages import user

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
        return Finding("writing", "problem", str(error), "Threads cannot be kept here before this is mended.")
    if not whole:
        return Finding("writing", "problem", "what was read is not what was written", "Use another store.")
    what = f"a thread was written, read back and removed; an append takes {took * 1000:.0f} ms"
    if took > _SLOW:
        return Finding("writing", "warning", what, "Agents wait for it in every turn. Is there a store nearby?")
    return Finding("writing", "ok", what)


def _place(store: Checkpointer, url: str | None) -> Iterator[Finding]:
    """What a store on this machine's own disk needs."""
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
    from clew import advice
    from clew.cli._output import size
    from clew.cli._stores import shown_store

    free = shutil.disk_usage(folder).free
    what = f"{size(free)} free at {folder}"
    if free < _NONE:
        return Finding(
            "disk", "problem", what, "Free some space: appends fail when it is full. Nothing stored is harmed."
        )
    if free < _LITTLE:
        collect = advice.collect(store=shown_store(url))
        return Finding("disk", "warning", what, f"Free some space. What no thread reaches is removed by: {collect}")
    return Finding("disk", "ok", what)


def _permissions(paths: list[Path]) -> Finding:
    from clew import advice

    open_to_others = [path for path in paths if path.stat().st_mode & 0o077]
    if not open_to_others:
        return Finding("privacy", "ok", "nobody else on this machine can read the store's files")
    command = advice.make_private(*map(str, open_to_others))
    return Finding("privacy", "warning", "others on this machine can get at the store's files", command)


def _file_clock(folder: Path) -> Finding:
    """The disk may be another machine's, with a clock of its own."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"now")
        file.flush()
        apart = os.fstat(file.fileno()).st_mtime - time.time()
    if abs(apart) > _APART:
        what = f"the disk's clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} this machine's"
        return Finding("file times", "warning", what, "Let both take the time from the network.")
    return Finding("file times", "ok", "the disk's clock is this machine's")


def _clock(newest: datetime) -> Finding:
    """What others wrote cannot be from the future."""
    ahead = newest - datetime.now(UTC)
    if ahead > timedelta(seconds=_APART):
        what = f"the newest thread was changed {ahead.total_seconds():.0f} s from now"
        return Finding(
            "clocks", "warning", what, "A clock is wrong, here or where it was written. Set it: leases go by it."
        )
    return Finding("clocks", "ok", "no thread is from the future")
