from __future__ import annotations

import pytest

from clew.checkpointers import MemoryCheckpointer
from clew.testing import CheckpointerContract, OpenStore


class TestMemory(CheckpointerContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        first = MemoryCheckpointer()
        return lambda namespace="": MemoryCheckpointer(namespace, beside=first)
