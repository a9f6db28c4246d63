from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import cycle

import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.checkpointers.sql import listing
from clew.testing import FreezableStore, OpenStore
from clew.testing.contract.silence import SilenceContract
from tests.servers.postgres import PostgresServer, running_postgres
from tests.servers.proxy import Proxy
from tests.servers.running import Frozen, free_port
from tests.stores import SILENCE, NewStore, SilentNetwork, StoreContract


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that does not wait for its disk: what it keeps through a crash is proven elsewhere."""
    with running_postgres(fsync="off") as server:
        yield server


@pytest.mark.xdist_group("postgres")
class TestPostgres(StoreContract):
    @pytest.fixture
    def new_store(self, server: PostgresServer) -> NewStore:
        """Every other store shares its connections; the rest stand apart, as in a process of their own."""
        schema, connections = server.new_schema(), cycle((4, 5))
        return lambda namespace="": PostgresCheckpointer(
            server.url(), namespace, schema=schema, connections=next(connections)
        )

    async def test_a_listing_in_several_parts_is_right_while_its_threads_are_written(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "FIRST", 100)
        monkeypatch.setattr(listing, "PART", 100)
        await self.test_a_long_listing_is_right_while_its_threads_are_written(open_store)

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        store = PostgresCheckpointer(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres")
        yield store
        await store.close()

    @pytest.fixture
    async def freezable_store(self, server: PostgresServer) -> AsyncIterator[FreezableStore]:
        async with PostgresCheckpointer(server.url(), schema=server.new_schema(), timeout=SILENCE) as store:
            yield Frozen(store, server.pid, timeout=SILENCE)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.xdist_group("postgres")
class TestSilentNetwork(SilenceContract):
    @pytest.fixture
    async def freezable_store(self, server: PostgresServer) -> AsyncIterator[FreezableStore]:
        async with Proxy(("127.0.0.1", server.port)) as proxy:
            url = server.url(port=proxy.port)
            async with PostgresCheckpointer(url, schema=server.new_schema(), timeout=SILENCE) as store:
                yield SilentNetwork(store, proxy)
