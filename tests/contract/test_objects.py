from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.objects.store import ObjectCheckpointer
from clew.testing import CheckpointerContract, OpenStore
from tests.servers.buckets import WatchedBucket
from tests.servers.running import free_port
from tests.servers.seaweedfs import BUCKET, SeaweedFS, seaweedfs

pytest.importorskip("obstore")
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


class TestObjectsInMemory(CheckpointerContract):
    """On obstore's own bucket in memory, which honours conditions too."""

    @pytest.fixture
    async def open_store(self) -> AsyncIterator[OpenStore]:
        bucket, opened = WatchedBucket(), list[Checkpointer]()

        def open_store(namespace: str = "") -> Checkpointer:
            opened.append(bucket.store(namespace))
            return opened[-1]

        yield open_store
        for store in opened:
            await store.close()


@pytest.mark.slow
@pytest.mark.xdist_group("seaweedfs")
class TestObjects(CheckpointerContract):
    """On a real S3 that honours conditions."""

    @pytest.fixture
    async def open_store(self, server: SeaweedFS) -> AsyncIterator[OpenStore]:
        opened: list[ObjectCheckpointer] = []
        prefix = f"contract/{next(_numbers)}"

        def open_store(namespace: str = "") -> ObjectCheckpointer:
            opened.append(ObjectCheckpointer(f"s3://{BUCKET}/{prefix}", namespace, **server.options()))
            return opened[-1]

        yield open_store
        for store in opened:
            await store.close()

    @pytest.fixture
    async def unreachable_store(self, server: SeaweedFS) -> AsyncIterator[Checkpointer]:
        nobody = f"http://127.0.0.1:{free_port()}"
        store = ObjectCheckpointer(f"s3://{BUCKET}", **server.options(endpoint=nobody))
        yield store
        await store.close()
