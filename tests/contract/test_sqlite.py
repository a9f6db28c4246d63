from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from clew.checkpointers import Checkpointer, SQLiteCheckpointer
from clew.checkpointers.sqlite import engine
from tests.stores import NewStore, StoreContract


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


class TestSQLiteWrittenByTheLoop(TestSQLite):
    """The same where the disk counts as quick from the first append on, so that the event loop writes itself."""

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine, "QUICK_RUNS", 0)
        monkeypatch.setattr(engine, "QUICK", float("inf"))
