"""Async tests run on asyncio, through the pytest plugin that anyio brings."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
