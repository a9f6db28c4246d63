"""Bells: who waits for work in a store is told at once that there is some, on stores that can do that."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clew.agent import Agent
from clew.checkpointers import Checkpointer, MemoryCheckpointer, open_checkpointer
from clew.checkpointers.bells import Bell, bell_name, bell_of, listen, ring_soon
from clew.testing import ScriptedModel
from clew.workers import Worker, enqueue
from tests.limits import PATIENCE
from tests.servers.postgres import PostgresServer, running_pooler, running_postgres
from tests.servers.redis import Server, a_cluster, a_server

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("bells")]

NEVER = 10 * PATIENCE
"""A pause between two looks into the queue that no test outlasts."""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with a_server("valkey", tmp_path_factory.mktemp("valkey")) as server:
        yield server


async def until_done(store: Checkpointer, thread_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (head := await store.head(thread_id)) is None or head.status != "done":
            await asyncio.sleep(0.01)


@asynccontextmanager
async def hearing(store: Checkpointer) -> AsyncIterator[asyncio.Event]:
    """An event that is set by rings. It has heard that the connection stands, and is clear."""
    heard = asyncio.Event()
    task = asyncio.create_task(listen(store, heard.set))
    async with asyncio.timeout(PATIENCE):
        await heard.wait()
    heard.clear()
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.wait([task])


async def is_taken_at_once(ours: Checkpointer, theirs: Checkpointer) -> None:
    """A thread that is enqueued through one connection is taken by a worker on the other, which never looks by itself."""
    worker = Worker(Agent(ScriptedModel(["Done."] * 9), name="clerk"), store=ours, poll=NEVER)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE):
        while worker.pulse.looked_at is None:
            await asyncio.sleep(0.01)
    async with hearing(ours):  # so does the worker's own listener, which began before
        for name in ("a", "b"):
            await enqueue(theirs, name, "Go.", agent="clerk")
            await until_done(theirs, name)
    worker.drain()
    await asyncio.wait_for(running, PATIENCE)


async def test_a_worker_on_postgres_is_told_over_another_connection(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    other = postgres.url(schema=schema, application_name="other")
    async with open_checkpointer(postgres.url(schema=schema)) as ours, open_checkpointer(other) as theirs:
        await is_taken_at_once(ours, theirs)


async def test_a_worker_on_valkey_is_told_over_another_connection(valkey: Server) -> None:
    url = f"{valkey.url}?prefix=bell{next(_numbers)}:"
    async with open_checkpointer(url) as ours, open_checkpointer(url) as theirs:
        await is_taken_at_once(ours, theirs)


async def test_a_sealed_store_has_the_bell_of_the_store_that_it_wraps(valkey: Server) -> None:
    url = f"{valkey.url}?prefix=bell{next(_numbers)}:"
    async with (
        open_checkpointer(url, key=os.urandom(32)) as sealed,
        open_checkpointer(url) as plain,
        hearing(sealed) as heard,
    ):
        await ring_soon(plain)
        await asyncio.wait_for(heard.wait(), PATIENCE)


@pytest.mark.slow
async def test_a_bell_is_heard_in_a_cluster(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as servers:
        one, other = (f"{server.url}?cluster=true" for server in servers[:2])
        async with open_checkpointer(one) as ours, open_checkpointer(other) as theirs, hearing(ours) as heard:
            await ring_soon(theirs)
            await asyncio.wait_for(heard.wait(), PATIENCE)


async def test_namespaces_do_not_hear_each_other(postgres: PostgresServer) -> None:
    url = postgres.url(schema=postgres.new_schema())
    async with (
        open_checkpointer(url, "one") as one,
        open_checkpointer(url, "two") as two,
        hearing(one) as in_one,
        hearing(two) as in_two,
    ):
        await ring_soon(one)
        await asyncio.wait_for(in_one.wait(), PATIENCE)
        assert not in_two.is_set()


async def test_behind_a_pooler_a_worker_looks_by_itself(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    with running_pooler(postgres) as port:
        async with open_checkpointer(postgres.url(schema=schema, port=port)) as store:
            await asyncio.wait_for(listen(store, lambda: None), PATIENCE)  # it ends: there is nothing to hear
            worker = Worker(Agent(ScriptedModel(["Done."]), name="clerk"), store=store, poll=0.1)
            running = asyncio.create_task(worker.run())
            await enqueue(store, "t", "Go.", agent="clerk")
            await until_done(store, "t")
            worker.drain()
            await running


async def test_a_listener_connects_again_after_its_connection_broke(postgres: PostgresServer) -> None:
    async with open_checkpointer(postgres.url(schema=postgres.new_schema())) as store, hearing(store) as heard:
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        await asyncio.wait_for(heard.wait(), PATIENCE)  # it says so, for rings may have been missed
        heard.clear()
        await ring_soon(store)
        await asyncio.wait_for(heard.wait(), PATIENCE)


async def test_a_bell_in_the_same_process_is_heard_in_another_thread_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'clew.db'}"

    async def ring() -> None:
        async with open_checkpointer(url) as store:
            await ring_soon(store)

    async with open_checkpointer(url) as store, hearing(store) as heard:
        thread = threading.Thread(target=lambda: asyncio.run(ring()))
        thread.start()
        await asyncio.wait_for(heard.wait(), PATIENCE)
        thread.join()


class Broken(MemoryCheckpointer, Bell):
    """A store whose bell is broken."""

    async def ring(self) -> None:
        raise OSError("no rope")

    async def hear(self) -> AsyncIterator[None]:
        raise OSError("no clapper")
        yield


async def test_a_broken_bell_harms_neither_the_enqueuer_nor_the_worker() -> None:
    async with Broken() as store:
        worker = Worker(Agent(ScriptedModel(["Done."]), name="clerk"), store=store, poll=0.05)
        running = asyncio.create_task(worker.run())
        await enqueue(store, "t", "Go.", agent="clerk")
        await until_done(store, "t")
        worker.drain()
        await running


async def test_a_delayed_thread_is_taken_when_it_is_due_and_not_at_the_next_look() -> None:
    async with MemoryCheckpointer() as store:
        worker = Worker(Agent(ScriptedModel(["Done."]), name="clerk"), store=store, poll=NEVER)
        running = asyncio.create_task(worker.run())
        await enqueue(store, "t", "Go.", agent="clerk", delay=0.3)
        await until_done(store, "t")
        worker.drain()
        await running


def test_a_name_of_a_bell_fits_every_server() -> None:
    assert bell_name("clew", "a") != bell_name("clew", "b") != bell_name("clewb", "")
    assert len(bell_name("x" * 500)) == 37
    assert isinstance(bell_of(MemoryCheckpointer()), Bell)
