from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import count

import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.objects.store import ObjectCheckpointer
from clew.testing import FreezableStore
from clew.testing.contract.silence import SilenceContract
from tests.servers.buckets import WatchedBucket
from tests.servers.proxy import Proxy
from tests.servers.running import Frozen, free_port
from tests.servers.seaweedfs import BUCKET, SeaweedFS, seaweedfs
from tests.stores import SILENCE, NewStore, SilentNetwork, StoreContract

pytest.importorskip("obstore")
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


class TestObjectsInMemory(StoreContract):
    """On obstore's own bucket in memory, which honours conditions too."""

    @pytest.fixture
    def new_store(self) -> NewStore:
        return WatchedBucket().store


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
class TestObjects(StoreContract):
    """On a real S3 that honours conditions."""

    @pytest.fixture
    def new_store(self, server: SeaweedFS) -> NewStore:
        return partial(ObjectCheckpointer, f"s3://{BUCKET}/contract/{next(_numbers)}", **server.options())

    @pytest.fixture
    async def unreachable_store(self, server: SeaweedFS) -> AsyncIterator[Checkpointer]:
        nobody = f"http://127.0.0.1:{free_port()}"
        store = ObjectCheckpointer(f"s3://{BUCKET}", **server.options(endpoint=nobody))
        yield store
        await store.close()

    @pytest.fixture
    async def freezable_store(self, server: SeaweedFS) -> AsyncIterator[FreezableStore]:
        url = f"s3://{BUCKET}/contract/{next(_numbers)}"
        async with ObjectCheckpointer(url, **server.options(timeout=SILENCE)) as store:
            yield Frozen(store, server.process.pid, timeout=SILENCE)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.xdist_group("seaweedfs")
class TestSilentNetwork(SilenceContract):
    @pytest.fixture
    async def freezable_store(self, server: SeaweedFS) -> AsyncIterator[FreezableStore]:
        async with Proxy(("127.0.0.1", int(server.endpoint.rpartition(":")[2]))) as proxy:
            url, endpoint = f"s3://{BUCKET}/contract/{next(_numbers)}", f"http://127.0.0.1:{proxy.port}"
            async with ObjectCheckpointer(url, **server.options(endpoint=endpoint, timeout=SILENCE)) as store:
                yield SilentNetwork(store, proxy)
