"""Async tests run on asyncio, through the pytest plugin that anyio brings; properties are tried on some examples every time,
and on more in full."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.sampling import FULL

settings.register_profile("sampled", max_examples=40)
if not FULL:
    settings.load_profile("sampled")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
