from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest
from blake3 import blake3

from clew.checkpointers import Checkpointer
from clew.checkpointers.opensearch.store import OpenSearchCheckpointer
from clew.testing import FreezableStore
from clew.testing.contract.silence import SilenceContract
from tests.limits import PATIENCE
from tests.servers.opensearch import shared_node
from tests.servers.proxy import Proxy
from tests.servers.running import Frozen, free_port
from tests.stores import SILENCE, NewStore, SilentNetwork, StoreContract

pytest.importorskip("opensearchpy")
_numbers = count()


@pytest.mark.slow
@pytest.mark.xdist_group("opensearch")
class TestOpenSearch(StoreContract):
    """On a real node. To make indices takes long, so a test's empty store is namespaces that no other test uses."""

    @pytest.fixture
    def new_store(self) -> NewStore:
        url, number = shared_node().url, next(_numbers)

        def new_store(namespace: str = "") -> OpenSearchCheckpointer:
            OpenSearchCheckpointer(url, namespace)  # refuses what is no namespace; the one used below always is
            inside = blake3(namespace.encode()).hexdigest()
            return OpenSearchCheckpointer(url, f"{number}/{inside}", prefix="contract", timeout=PATIENCE)

        return new_store

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        store = OpenSearchCheckpointer(f"opensearch://127.0.0.1:{free_port()}")
        yield store
        await store.close()

    @pytest.fixture
    async def freezable_store(self) -> AsyncIterator[FreezableStore]:
        url, namespace = shared_node().url, f"{next(_numbers)}"
        async with OpenSearchCheckpointer(url, namespace, prefix="contract", timeout=5 * SILENCE) as store:
            yield Frozen(store, shared_node().process.pid, timeout=5 * SILENCE)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.xdist_group("opensearch")
class TestSilentNetwork(SilenceContract):
    @pytest.fixture
    async def freezable_store(self) -> AsyncIterator[FreezableStore]:
        async with Proxy(("127.0.0.1", shared_node().port)) as proxy:
            url, namespace = f"opensearch://127.0.0.1:{proxy.port}", f"{next(_numbers)}"
            async with OpenSearchCheckpointer(url, namespace, prefix="contract", timeout=5 * SILENCE) as store:
                yield SilentNetwork(store, proxy, 5 * SILENCE)
