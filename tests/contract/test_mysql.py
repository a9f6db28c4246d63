from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.mysql.store import MySQLCheckpointer
from clew.checkpointers.sql import listing
from clew.testing import FreezableStore, OpenStore
from clew.testing.contract.silence import SilenceContract
from tests.servers.mariadb import MariaDBServer, running_mariadb
from tests.servers.proxy import Proxy
from tests.servers.running import Frozen, free_port
from tests.stores import SILENCE, NewStore, SilentNetwork, StoreContract


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDBServer]:
    with running_mariadb() as server:
        yield server


@pytest.mark.slow
@pytest.mark.xdist_group("mysql")
class TestMySQL(StoreContract):
    @pytest.fixture
    async def new_store(self, server: MariaDBServer) -> NewStore:
        await server.empty("clew_")
        return partial(MySQLCheckpointer, server.url())

    async def test_a_listing_in_several_parts_is_right_while_its_threads_are_written(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "FIRST", 100)
        monkeypatch.setattr(listing, "PART", 100)
        await self.test_a_long_listing_is_right_while_its_threads_are_written(open_store)

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        store = MySQLCheckpointer(f"mysql://clew@127.0.0.1:{free_port()}/clew")
        yield store
        await store.close()

    @pytest.fixture
    async def freezable_store(self, server: MariaDBServer) -> AsyncIterator[FreezableStore]:
        async with MySQLCheckpointer(server.url(), prefix=server.new_prefix(), timeout=SILENCE) as store:
            yield Frozen(store, server.pid, timeout=SILENCE)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.xdist_group("mysql")
class TestSilentNetwork(SilenceContract):
    @pytest.fixture
    async def freezable_store(self, server: MariaDBServer) -> AsyncIterator[FreezableStore]:
        async with Proxy(("127.0.0.1", server.port)) as proxy:
            url = server.url(port=proxy.port)
            async with MySQLCheckpointer(url, prefix=server.new_prefix(), timeout=SILENCE) as store:
                yield SilentNetwork(store, proxy)
