"""Settings for all tests: async ones run on asyncio, through the pytest plugin that anyio brings, and no property fails
because the machine is busy."""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from clew.checkpointers import Checkpointer
from tests.clock import Clock
from tests.sampling import FULL, IS_FIXED, ON_SPEED, SEED
from tests.servers import npm
from tests.sqlite_guard import guard_stores
from tests.stores import NewStore

pytest_plugins = ["tests.report"]

guard_stores()

settings.register_profile("full", deadline=None, suppress_health_check=ON_SPEED)
settings.register_profile("sampled", settings.get_profile("full"), max_examples=40)
settings.register_profile("fixed", settings.get_profile("sampled"), max_examples=20, derandomize=True, database=None)
settings.load_profile("full" if FULL else "fixed" if IS_FIXED else "sampled")

_IS_SLOW_THROUGHOUT = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hand the seed of this run to hypothesis, before its own plugin looks for one. Collect no garbage while tests are
    collected: what that makes lives to the end of the run. A shell has what it runs in the background ignore Ctrl+C, and
    so would every program that a test starts and stops by it: undo that."""
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not IS_FIXED and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules of slow tests in a run without slow tests: every worker would import them, to drop them."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return True if _IS_SLOW_THROUGHOUT.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let only tests that are marked slow start the coding agents: `make test` does without npm."""
    npm.is_allowed = item.get_closest_marker("slow") is not None


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Iterator[Clock]:
    """A clock that the test moves on instead of waiting."""
    with Clock() as clock:
        yield clock


@pytest.fixture
async def open_store(new_store: NewStore) -> AsyncIterator[NewStore]:
    """A function that opens another checkpointer on the same data, as a second connection does. What it opened is closed
    after the test. The module or class of the test says in a fixture `new_store` how one is made."""
    opened: list[Checkpointer] = []

    def open_store(*given: Any, **options: Any) -> Checkpointer:
        opened.append(new_store(*given, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.close()
