"""Settings for all tests: async ones run on asyncio, through the pytest plugin that anyio brings, and no property fails
because the machine is busy."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.sampling import FULL, IS_FIXED, ON_SPEED, SEED
from tests.servers import npm

pytest_plugins = ["tests.report"]

settings.register_profile("full", deadline=None, suppress_health_check=ON_SPEED)
settings.register_profile("sampled", settings.get_profile("full"), max_examples=40)
settings.register_profile("fixed", settings.get_profile("sampled"), max_examples=20, derandomize=True, database=None)
settings.load_profile("full" if FULL else "fixed" if IS_FIXED else "sampled")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hand the seed of this run to hypothesis, before its own plugin looks for one."""
    if not IS_FIXED and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let only tests that are marked slow start the coding agents: `make test` does without npm."""
    npm.is_allowed = item.get_closest_marker("slow") is not None


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
