"""The checkpointers behind the service: opened as they are needed, and not without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.errors import InvalidInput, UsageError
from clew.server.stores import MOST_OPEN, Stores
from clew.testing.contract.builders import append

pytestmark = pytest.mark.anyio


async def test_namespaces_that_nobody_uses_are_closed_and_hold_what_they_held(tmp_path: Path) -> None:
    stores = Stores(f"sqlite:///{tmp_path}/clew.db")
    async with stores.use("first") as first:
        await append(first, "thread", b"frame")
    for number in range(MOST_OPEN + 5):
        async with stores.use(f"namespace {number}") as store:
            assert await store.head("thread") is None
    with pytest.raises(UsageError):
        await first.head("thread")
    async with stores.use("first") as again:
        assert await again.read("thread") == [b"frame"]
    await stores.close()


async def test_a_namespace_in_use_is_not_closed(tmp_path: Path) -> None:
    stores = Stores(f"sqlite:///{tmp_path}/clew.db")
    async with stores.use("used") as used:
        for number in range(MOST_OPEN + 5):
            async with stores.use(f"namespace {number}"):
                pass
        await append(used, "thread", b"frame")
        assert await used.read("thread") == [b"frame"]
    await stores.close()


async def test_memory_that_was_let_go_of_is_still_there() -> None:
    stores = Stores("memory://")
    async with stores.use("first") as first:
        await append(first, "thread", b"frame")
    for number in range(MOST_OPEN + 5):
        async with stores.use(f"namespace {number}"):
            pass
    async with stores.use("first") as again:
        assert await again.read("thread") == [b"frame"]
    await stores.close()


def test_a_bad_url_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="quark"):
        Stores("quark://somewhere")
