from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from blake3 import blake3

from clew.checkpointers import Checkpointer, FileCheckpointer
from clew.checkpointers.heads import thread_key
from clew.testing import FreezableStore
from tests.servers.lock_holder import LOCKING_FILES, LockedStore
from tests.stores import SILENCE, NewStore, StoreContract


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

    @pytest.fixture
    async def freezable_store(self, tmp_path: Path) -> AsyncIterator[FreezableStore]:
        if sys.platform == "win32":
            pytest.skip("needs signals that stop a process")
        space = tmp_path / "store" / blake3(b"").hexdigest()
        keys = map(thread_key, ("before", "thread", *(f"thread {number}" for number in range(20))))
        locked = [space / "blobs.lock", *(space / "threads" / key[:2] / key for key in keys)]
        async with FileCheckpointer(tmp_path / "store", timeout=SILENCE) as store:
            yield LockedStore(store, LOCKING_FILES, locked, timeout=SILENCE, answering=("get_blobs", "blobs"))
