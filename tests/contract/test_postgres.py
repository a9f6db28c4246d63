from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.testing import CheckpointerContract, OpenStore
from tests.servers.postgres import PostgresServer, running_postgres
from tests.servers.running import free_port


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that does not wait for its disk: what it keeps through a crash is proven elsewhere."""
    with running_postgres(fsync="off") as server:
        yield server


@pytest.mark.xdist_group("postgres")
class TestPostgres(CheckpointerContract):
    @pytest.fixture
    async def open_store(self, server: PostgresServer) -> AsyncIterator[OpenStore]:
        """Every other one shares its connections; the rest stand apart, as in a process of their own."""
        opened: list[PostgresCheckpointer] = []
        schema = server.new_schema()

        def open_store(namespace: str = "") -> PostgresCheckpointer:
            opened.append(PostgresCheckpointer(server.url(), namespace, schema=schema, connections=4 + len(opened) % 2))
            return opened[-1]

        yield open_store
        for store in opened:
            await store.close()

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        store = PostgresCheckpointer(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres")
        yield store
        await store.close()
