"""What tests of workspaces have in common: a store and a folder; and caches go to a folder of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clew.checkpointers import Checkpointer, MemoryCheckpointer


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CLEW_CACHE", str(folder))
    return folder


@pytest.fixture
async def store() -> AsyncIterator[Checkpointer]:
    async with MemoryCheckpointer() as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path
