"""At any size: a page of a listing is read from the index, and a long thread is read, copied and verified in little memory.

`make crash` takes 100,000 threads and a thread of 1,000,000 turns, which needs 8 GB of disk for a while.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest

from bench.large import COMPACT, PAGES, middle_page, page_seconds, peak_memory, reads, turn_seconds
from bench.long_threads import write_thread
from bench.many_threads import write_threads
from clew.checkpointers import Checkpointer, HeadQuery, SQLiteCheckpointer
from clew.threads import Thread
from tests.limits import processor_time
from tests.sampling import FULL

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.anyio, pytest.mark.xdist_group("scale")]

FEW, MANY = 1_000, 100_000 if FULL else 10_000
TURNS = 1_000_000 if FULL else 20_000
AGENT_TURNS = TURNS // 5
"""Turns of the thread that an agent goes on with. It holds the thread's messages in memory, so that this one is shorter."""
MEMORY = 200 * 2**20
SHORT = 2 * COMPACT
"""Turns of a short thread. The model sees as much of it as of a long one."""

INDEXED = ("the newest", "by status", "by a common tag", "in the middle")
"""Pages that are full after few rows of the index."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder that is gone afterwards: those of pytest stay for three runs, and this one has gigabytes."""
    with TemporaryDirectory(prefix="clew-scale-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def listed(folder: Path) -> list[Path]:
    """Return the paths of two stores, with few threads and with many."""

    async def write(path: Path, count: int) -> Path:
        async with SQLiteCheckpointer(path) as store:
            await write_threads(store, count)
        return path

    return [asyncio.run(write(folder / f"{count}.db", count)) for count in (FEW, MANY)]


@pytest.fixture(scope="module")
def long(folder: Path) -> Path:
    """Return the path of a store with the long thread."""
    path = folder / "long.db"

    async def write() -> None:
        async with SQLiteCheckpointer(path) as store:
            await write_thread(store, "long", TURNS, compact_every=COMPACT)

    asyncio.run(write())
    return path


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the steps that SQLite takes for each statement of connections that are opened in this block."""
    steps: list[int] = []

    def watch(connection: apsw.Connection) -> None:
        def ended(event: dict[str, object]) -> None:
            status = event["stmt_status"]
            assert isinstance(status, dict)
            steps.append(int(status["SQLITE_STMTSTATUS_VM_STEP"]))

        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, ended)

    apsw.connection_hooks.append(watch)
    try:
        yield steps
    finally:
        apsw.connection_hooks.remove(watch)


@asynccontextmanager
async def opened(path: Path, count: int) -> AsyncIterator[tuple[Checkpointer, dict[str, HeadQuery]]]:
    async with SQLiteCheckpointer(path) as store:
        yield store, {**PAGES, "in the middle": await middle_page(store, count)}


async def test_a_page_takes_as_many_steps_among_many_threads_as_among_few(listed: list[Path]) -> None:
    found: list[dict[str, int]] = []
    for path, count in zip(listed, (FEW, MANY), strict=True):
        with counted() as steps:
            async with opened(path, count) as (store, pages):
                taken = {}
                for name, query in pages.items():
                    steps.clear()
                    heads = [head async for head in Thread.list(store, query)]
                    assert len(heads) == 50 or name not in INDEXED
                    taken[name] = sum(steps)
        found.append(taken)
    few, many = found
    for name in few:
        if name in INDEXED:
            # How many rows it takes to find 50 with a tag that every twentieth has is a matter of chance.
            assert 0 < many[name] <= (2 if "tag" in name else 1.2) * few[name], name
        else:
            assert many[name] <= 30 * MANY, f"{name}: every thread is looked at, in a few steps each"


async def test_pages_take_little_processor_time(listed: list[Path]) -> None:
    async with opened(listed[1], MANY) as (store, pages):
        for name in INDEXED:
            await page_seconds(store, pages[name])
            with processor_time(2.0):  # forty times the limit of `make bench`
                for _ in range(10):
                    await page_seconds(store, pages[name])


@pytest.mark.parametrize("name", reads(Path(), TURNS, Path()))
def test_a_long_thread_is_read_in_little_memory(name: str, long: Path) -> None:
    with TemporaryDirectory(dir=long.parent) as copies:
        used = peak_memory(reads(long, TURNS, Path(copies))[name])
    print(f"{name}, {TURNS:,} turns: {used / 2**20:.0f} MB")
    assert used <= MEMORY


async def test_an_agents_turn_costs_the_same_on_a_long_thread(folder: Path) -> None:
    ratios = []
    path = folder / "agents.db"
    async with SQLiteCheckpointer(path) as store:
        await write_thread(store, "long", AGENT_TURNS, compact_every=COMPACT)
        await write_thread(store, "short", SHORT, compact_every=COMPACT)
        for _ in range(3):
            costs = {name: statistics.median(await turn_seconds(store, name, 30)) for name in ("short", "long")}
            ratios.append(costs["long"] / costs["short"])
    path.unlink()
    print(f"an agent's turn after {AGENT_TURNS:,} turns: {min(ratios):.2f} of one after {SHORT}")
    assert min(ratios) <= 1.5  # `make bench` holds 1.2; a cost that grows would be many times as high
