"""Settings for all tests: async ones run on asyncio, through the pytest plugin that anyio brings, and no property fails
because the machine is busy."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.sampling import FULL, IS_FIXED, ON_SPEED, SEED

pytest_plugins = ["tests.report"]

settings.register_profile("full", deadline=None, suppress_health_check=ON_SPEED)
settings.register_profile("sampled", settings.get_profile("full"), max_examples=40)
settings.register_profile("fixed", settings.get_profile("sampled"), derandomize=True, database=None)
settings.load_profile("full" if FULL else "fixed" if IS_FIXED else "sampled")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hand the seed of this run to hypothesis, before its own plugin looks for one."""
    if not IS_FIXED and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(SEED)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
