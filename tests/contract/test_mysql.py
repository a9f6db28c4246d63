from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.mysql.store import MySQLCheckpointer
from clew.testing import CheckpointerContract, OpenStore
from tests.servers.mariadb import MariaDBServer, running_mariadb
from tests.servers.running import free_port


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDBServer]:
    with running_mariadb() as server:
        yield server


@pytest.mark.slow
@pytest.mark.xdist_group("mysql")
class TestMySQL(CheckpointerContract):
    @pytest.fixture
    async def open_store(self, server: MariaDBServer) -> AsyncIterator[OpenStore]:
        opened: list[MySQLCheckpointer] = []
        await server.empty("clew_")

        def open_store(namespace: str = "") -> MySQLCheckpointer:
            opened.append(MySQLCheckpointer(server.url(), namespace))
            return opened[-1]

        yield open_store
        for store in opened:
            await store.close()

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        store = MySQLCheckpointer(f"mysql://clew@127.0.0.1:{free_port()}/clew")
        yield store
        await store.close()
