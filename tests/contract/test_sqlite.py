from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from clew.checkpointers import Checkpointer, SQLiteCheckpointer
from clew.checkpointers.sqlite import engine
from clew.testing import FreezableStore
from tests.servers.lock_holder import LOCKING_SQLITE, LockedStore
from tests.stores import SILENCE, NewStore, StoreContract


class TestSQLite(StoreContract):
    @pytest.fixture
    def new_store(self, tmp_path: Path) -> NewStore:
        return partial(SQLiteCheckpointer, tmp_path / "clew.db")

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        if sys.platform == "win32":
            pytest.skip("needs a place where even an administrator cannot make a folder")
        store = SQLiteCheckpointer("/proc/clew/clew.db")
        yield store
        await store.close()

    @pytest.fixture
    async def freezable_store(self, tmp_path: Path) -> AsyncIterator[FreezableStore]:
        if sys.platform == "win32":
            pytest.skip("needs signals that stop a process")
        path = tmp_path / "clew.db"
        async with SQLiteCheckpointer(path, timeout=SILENCE) as store:
            yield LockedStore(store, LOCKING_SQLITE, [path, "BEGIN IMMEDIATE"], timeout=SILENCE, answering=SQLITE_READS)


SQLITE_READS = ("read", "head", "heads", "refs", "get_blobs", "blobs")
"""In WAL mode a process that writes does not lock out those that read."""


class TestSQLiteWrittenByTheLoop(TestSQLite):
    """The same where the disk counts as quick from the first append on, so that the event loop writes itself."""

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine, "QUICK_RUNS", 0)
        monkeypatch.setattr(engine, "QUICK", float("inf"))
