from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from clew.checkpointers import Checkpointer, FileCheckpointer
from tests.stores import NewStore, StoreContract


class TestFiles(StoreContract):
    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        return partial(FileCheckpointer, tmp_path / "store")

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        if sys.platform == "win32":
            pytest.skip("needs a place where even an administrator cannot make a folder")
        store = FileCheckpointer("/proc/clew/store")
        yield store
        await store.close()
