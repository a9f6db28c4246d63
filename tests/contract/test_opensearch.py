from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest
from blake3 import blake3

from clew.checkpointers import Checkpointer
from clew.checkpointers.opensearch.store import OpenSearchCheckpointer
from tests.servers.opensearch import shared_node
from tests.servers.running import free_port
from tests.stores import NewStore, StoreContract

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
            return OpenSearchCheckpointer(url, f"{number}/{inside}", prefix="contract")

        return new_store

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        store = OpenSearchCheckpointer(f"opensearch://127.0.0.1:{free_port()}")
        yield store
        await store.close()
