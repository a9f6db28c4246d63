"""A store for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from clew.checkpointers import MemoryCheckpointer


@pytest.fixture
async def store() -> AsyncIterator[MemoryCheckpointer]:
    async with MemoryCheckpointer() as opened:
        yield opened
