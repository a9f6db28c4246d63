from __future__ import annotations

from functools import partial

import pytest

from clew.checkpointers import MemoryCheckpointer
from tests.stores import NewStore, StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def new_store(self) -> NewStore:
        return partial(MemoryCheckpointer, beside=MemoryCheckpointer())
