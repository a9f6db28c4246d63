"""A call that takes longer than a store waits without progress, and makes progress all the time, is not cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.checkpointers.mysql.store import MySQLCheckpointer
from clew.checkpointers.objects.store import ObjectCheckpointer
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.checkpointers.redis.store import RedisCheckpointer
from clew.testing.contract.builders import digest_of
from clew.testing.contract.silence import available
from tests.server.serving import serving
from tests.servers.mariadb import MariaDBServer, running_mariadb
from tests.servers.postgres import running_postgres
from tests.servers.proxy import Proxy
from tests.servers.redis import a_server
from tests.servers.seaweedfs import BUCKET, seaweedfs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TIMEOUT = 3.0
SIZE = 6 * 2**20
SLOWNESS = 0.1
"""Seconds for each 64 KiB: 6 MiB take about ten, more than three times as long as a call may go without progress."""


async def moves(store: Checkpointer) -> None:
    """Check that a blob which takes long comes and goes whole."""
    await available(lambda: store.head("thread"))
    data = random.Random(1).randbytes(SIZE)
    await store.put_blobs({digest_of(data): data})
    assert await store.get_blobs([digest_of(data)]) == {digest_of(data): data}


@pytest.mark.xdist_group("postgres")
async def test_postgres() -> None:
    with running_postgres(fsync="off") as server:
        async with (
            Proxy(("127.0.0.1", server.port), slowness=SLOWNESS) as proxy,
            PostgresCheckpointer(server.url(port=proxy.port), timeout=TIMEOUT) as store,
        ):
            await moves(store)


@pytest.mark.xdist_group("redis")
async def test_redis(tmp_path: Path) -> None:
    with a_server("redis", tmp_path) as server:
        async with (
            Proxy(("127.0.0.1", server.port), slowness=SLOWNESS) as proxy,
            RedisCheckpointer(f"redis://127.0.0.1:{proxy.port}", timeout=TIMEOUT) as store,
        ):
            await moves(store)


async def test_http() -> None:
    with serving() as service:
        async with (
            Proxy(("127.0.0.1", int(service.url.rpartition(":")[2])), slowness=SLOWNESS) as proxy,
            HTTPCheckpointer(f"http://127.0.0.1:{proxy.port}", timeout=TIMEOUT) as store,
        ):
            await moves(store)


@pytest.mark.xdist_group("seaweedfs")
async def test_object_storage(tmp_path: Path) -> None:
    """An upload cannot be watched there, but has one more second for each MiB."""
    with seaweedfs(tmp_path) as server:
        async with Proxy(("127.0.0.1", int(server.endpoint.rpartition(":")[2])), slowness=SLOWNESS / 2) as proxy:
            options = server.options(endpoint=f"http://127.0.0.1:{proxy.port}", timeout=TIMEOUT)
            async with ObjectCheckpointer(f"s3://{BUCKET}/slow", **options) as store:
                await moves(store)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDBServer]:
    with running_mariadb() as server:
        yield server


@pytest.mark.xdist_group("mysql")
async def test_mysql(mariadb: MariaDBServer) -> None:
    async with (
        Proxy(("127.0.0.1", mariadb.port), slowness=SLOWNESS) as proxy,
        MySQLCheckpointer(mariadb.url(port=proxy.port), timeout=TIMEOUT) as store,
    ):
        await moves(store)
