from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial

import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.redis import listing
from clew.checkpointers.redis.store import RedisCheckpointer
from clew.testing import FreezableStore, OpenStore
from clew.testing.contract.silence import SilenceContract
from tests.sampling import FULL
from tests.servers.proxy import Proxy
from tests.servers.redis import Server, a_cluster, a_server
from tests.servers.running import Frozen, free_port
from tests.stores import SILENCE, NewStore, SilentNetwork, StoreContract

_numbers = itertools.count()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with a_server("redis", tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with a_server("valkey", tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Server]]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


class _Contract(StoreContract):
    """Each test has a prefix, and so a store, of its own."""

    @pytest.fixture
    def new_store(self, url: str) -> NewStore:
        return partial(RedisCheckpointer, url, prefix=f"test-{next(_numbers)}:")

    async def test_a_listing_in_several_parts_is_right_while_its_threads_are_written(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "_BATCH", 100)
        await self.test_a_long_listing_is_right_while_its_threads_are_written(open_store)

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        store = RedisCheckpointer(f"redis://127.0.0.1:{free_port()}")
        yield store
        await store.close()


@pytest.mark.xdist_group("redis")
class TestRedis(_Contract):
    @pytest.fixture
    def url(self, redis_server: Server) -> str:
        return redis_server.url

    @pytest.fixture
    async def freezable_store(self, redis_server: Server) -> AsyncIterator[FreezableStore]:
        async with RedisCheckpointer(redis_server.url, prefix=f"test-{next(_numbers)}:", timeout=SILENCE) as store:
            yield Frozen(store, redis_server.process.pid, timeout=SILENCE)


@pytest.mark.xdist_group("redis")
class TestValkey(_Contract):
    @pytest.fixture
    def url(self, valkey_server: Server) -> str:
        return valkey_server.url

    @pytest.fixture
    async def freezable_store(self, valkey_server: Server) -> AsyncIterator[FreezableStore]:
        async with RedisCheckpointer(valkey_server.url, prefix=f"test-{next(_numbers)}:", timeout=SILENCE) as store:
            yield Frozen(store, valkey_server.process.pid, timeout=SILENCE)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.xdist_group("redis")
class TestSilentNetwork(SilenceContract):
    @pytest.fixture
    async def freezable_store(self, redis_server: Server) -> AsyncIterator[FreezableStore]:
        async with Proxy(("127.0.0.1", redis_server.port)) as proxy:
            url, prefix = f"redis://127.0.0.1:{proxy.port}", f"test-{next(_numbers)}:"
            async with RedisCheckpointer(url, prefix=prefix, timeout=SILENCE) as store:
                yield SilentNetwork(store, proxy)


if FULL:

    @pytest.mark.crash
    @pytest.mark.xdist_group("redis-cluster")
    class TestCluster(_Contract):
        @pytest.fixture
        def url(self, cluster: Sequence[Server]) -> str:
            return f"{cluster[0].url}?cluster=true"

        @pytest.fixture
        async def freezable_store(self, url: str, cluster: Sequence[Server]) -> AsyncIterator[FreezableStore]:
            async with RedisCheckpointer(url, prefix=f"test-{next(_numbers)}:", timeout=SILENCE) as store:
                yield Frozen(store, *(server.process.pid for server in cluster), timeout=SILENCE)

        @pytest.fixture
        async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
            store = RedisCheckpointer(f"redis://127.0.0.1:{free_port()}?cluster=true")
            yield store
            await store.close()
