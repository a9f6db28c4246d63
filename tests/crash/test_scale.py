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

from bench.large import COMPACT, PAGE, PAGE_SECONDS, PAGES, middle_page, page_seconds, peak_memory, reads, turn_seconds
from bench.long_threads import write_thread
from bench.many_threads import write_threads
from clew.checkpointers import Checkpointer, HeadQuery, SQLiteCheckpointer
from clew.threads import Thread
from tests.sampling import FULL

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.anyio, pytest.mark.xdist_group("scale")]

FEW, MANY = 1_000, 100_000 if FULL else 10_000
TURNS = 1_000_000 if FULL else 20_000
TENTH = TURNS // 10
AGENT_TURNS = TURNS // 5
"""Turns of the thread that an agent goes on with. It holds the thread's messages in memory, so that this one is shorter."""
MEMORY = 200 * 2**20
CONSTANT, A_TURN = 32 * 2**20, 128
"""By how many bytes the memory to read a thread may grow at any size, for caches that fill, and with each further turn, for
where its messages are. The turn itself has 3 KB."""
READS = list(reads(Path(), TURNS, Path()))
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
def long(folder: Path) -> list[Path]:
    """Return the paths of two stores, each with a thread "long": one of a tenth of the turns, and one of all."""

    async def write(path: Path, turns: int) -> Path:
        async with SQLiteCheckpointer(path) as store:
            await write_thread(store, "long", turns, compact_every=COMPACT)
        return path

    return [asyncio.run(write(folder / f"long-{turns}.db", turns)) for turns in (TENTH, TURNS)]


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


async def test_a_page_takes_at_most_five_milliseconds_of_processor_time(listed: list[Path]) -> None:
    """Pages for which all threads are looked at may take that for each 10,000 threads, and half as much again."""
    async with opened(listed[1], MANY) as (store, pages):
        for name, query in pages.items():
            times = [await page_seconds(store, query) for _ in range(11)]
            limit = PAGE_SECONDS if name in INDEXED else 1.5 * PAGE_SECONDS * MANY / 10_000
            print(f"a page of {PAGE}, {name}, of {MANY:,} threads: {statistics.median(times) * 1000:.2f} ms")
            assert statistics.median(times) <= limit, name


@pytest.mark.parametrize("place", range(len(READS)), ids=READS)
def test_a_long_thread_is_read_in_as_little_memory_as_a_short_one_but_for_some_bytes_a_turn(
    place: int, long: list[Path]
) -> None:
    used = []
    for path, turns in zip(long, (TENTH, TURNS), strict=True):
        with TemporaryDirectory(dir=path.parent) as copies:
            command = list(reads(path, turns, Path(copies)).values())[place]
            used.append(peak_memory(command))
    print(f"{READS[place]}: {used[0] / 2**20:.0f} MB at {TENTH:,} turns, {used[1] / 2**20:.0f} MB at {TURNS:,}")
    assert used[1] <= MEMORY
    assert used[1] <= used[0] + CONSTANT + A_TURN * (TURNS - TENTH)


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
