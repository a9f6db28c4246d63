"""How much a store holds: what a thread takes, and what a look at the queue and at a page of threads costs as threads grow.

python -m bench.capacity 1000 10000 100000
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec

from bench.many_threads import write_threads
from bench.scale import files_size, progress, scratch
from bench.show import micros, size
from clew.agent import Agent
from clew.checkpointers import Checkpointer, FileCheckpointer, HeadQuery, SQLiteCheckpointer
from clew.checkpointers.objects.store import ObjectCheckpointer
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.checkpointers.redis.store import RedisCheckpointer
from clew.testing import ScriptedModel
from clew.workers import enqueue
from tests.servers.postgres import running_postgres
from tests.servers.redis import a_server, speak
from tests.servers.seaweedfs import BUCKET, seaweedfs

__all__ = ["Capacity", "capacity"]

_QUEUED = 1000
_LOOKS = 5


class Capacity(msgspec.Struct, frozen=True):
    """What was measured of one store with so many threads. Times are medians, in seconds."""

    store: str
    threads: int
    bytes: int
    """What the store takes for all of them, with its indexes."""
    page: float
    """To list the 50 threads that were changed last."""
    look: float
    """To list the 50 threads of the queue that are due first, of 1,000 that are queued."""
    run: float
    """To run an agent's prompt of one turn on a new thread."""


Opened = tuple[Checkpointer, Callable[[], int]]


async def capacity(store: Checkpointer, name: str, counts: list[int], measure: Callable[[], int]) -> list[Capacity]:
    """Fill a store step by step, and measure it at each step. `measure` returns how many bytes it takes."""
    results: list[Capacity] = []
    written = 0
    for count in counts:
        progress(f"{name}: {count:,} threads")
        await write_threads(store, count, first=written)
        written = count
        taken = measure()
        for number in range(_QUEUED):
            await enqueue(store, f"queued-{number}", "Go.", agent="clerk")
        results.append(await _at(store, name, count, taken))
        for number in range(_QUEUED):
            await store.delete(f"queued-{number}")
    return results


async def _at(store: Checkpointer, name: str, count: int, taken: int) -> Capacity:
    agent = Agent(ScriptedModel(["Done."]), name="other", checkpointer=store)
    numbers = iter(range(_LOOKS))
    return Capacity(
        name,
        count,
        taken,
        page=await _median(lambda: _listed(store, HeadQuery(limit=50))),
        look=await _median(lambda: _listed(store, HeadQuery(order="due", agent="clerk", limit=50))),
        run=await _median(lambda: _ran(agent, f"run-{count}-{next(numbers)}")),
    )


async def _median(work: Callable[[], Awaitable[None]]) -> float:
    taken = []
    for _ in range(_LOOKS):
        start = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


async def _listed(store: Checkpointer, query: HeadQuery) -> None:
    if len([head async for head in store.heads(query)]) != query.limit:
        raise AssertionError("the page is not full")


async def _ran(agent: Agent, thread_id: str) -> None:
    await agent.run("Go.", thread_id=thread_id)


@contextmanager
def _sqlite() -> Iterator[Opened]:
    with scratch() as folder:
        yield SQLiteCheckpointer(folder / "c.db"), lambda: files_size(folder / "c.db")


@contextmanager
def _files() -> Iterator[Opened]:
    with scratch() as folder:
        yield FileCheckpointer(folder / "store"), lambda: files_size(folder / "store")


@contextmanager
def _postgres() -> Iterator[Opened]:
    with running_postgres() as server:
        schema = server.new_schema()
        asked = (
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE n.nspname = '{schema}' AND c.relkind = 'r'"
        )
        yield PostgresCheckpointer(server.url(), schema=schema), lambda: int(server.execute(asked)[0][0])


@contextmanager
def _redis() -> Iterator[Opened]:
    with scratch() as folder, a_server("redis", folder) as server:

        def used() -> int:
            told = speak(server.port, "INFO memory").decode()
            return int(told.partition("used_memory:")[2].split()[0])

        yield RedisCheckpointer(server.url), used


@contextmanager
def _buckets() -> Iterator[Opened]:
    with scratch() as folder, seaweedfs(folder) as server:
        yield ObjectCheckpointer(f"s3://{BUCKET}/capacity", **server.options()), lambda: files_size(folder / "data")


_STORES: dict[str, Callable[[], AbstractContextManager[Opened]]] = {
    "SQLite": _sqlite,
    "files": _files,
    "PostgreSQL": _postgres,
    "Redis": _redis,
    "S3": _buckets,
}


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description="How much a store holds.")
    parser.add_argument("threads", type=int, nargs="+", help="how many threads, from few to many")
    parser.add_argument("--store", choices=_STORES, action="append", help="only this store; may be given again")
    given = parser.parse_args()
    print("| store | threads | bytes a thread | a page of 50 | a look at the queue | a run of one turn |")
    print("|---|---|---|---|---|---|")
    for name in given.store or _STORES:
        with _STORES[name]() as (opened, measure):
            async with opened as store:
                for found in await capacity(store, name, sorted(given.threads), measure):
                    times = " | ".join(micros(value) for value in (found.page, found.look, found.run))
                    print(
                        f"| {name} | {found.threads:,} | {size(found.bytes // found.threads)} | {times} |", flush=True
                    )


if __name__ == "__main__":
    asyncio.run(_main())
