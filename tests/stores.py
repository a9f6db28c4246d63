"""How tests open stores: one of a kind, several on the same data, or one under the whole contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from clew.checkpointers import Checkpointer, FileCheckpointer, MemoryCheckpointer, SQLiteCheckpointer
from clew.checkpointers.base import is_abandoned
from clew.errors import Conflict, Unavailable
from clew.testing import CheckpointerContract, OpenStore
from clew.testing.contract.builders import append, state
from tests.servers.proxy import Proxy

__all__ = ["SILENCE", "STORES", "NewStore", "SilentNetwork", "StoreContract", "make_store", "store_fixture"]

STORES = ("memory", "sqlite", "files")
"""The kinds of stores that need no server."""

SILENCE = 2.0
"""Seconds without progress after which calls end, in tests with a server that says nothing."""

NewStore = Callable[..., Checkpointer]
"""What the fixture `new_store` returns: a function that makes another checkpointer on the data of this test."""


def make_store(kind: str, folder: Path) -> Checkpointer:
    """Return a store of one of the kinds in `STORES`, with its data in this folder."""
    if kind == "memory":
        return MemoryCheckpointer()
    return SQLiteCheckpointer(folder / "store.db") if kind == "sqlite" else FileCheckpointer(folder / "store")


def store_fixture(*kinds: str) -> Any:
    """Return a fixture that runs each test once for each of these kinds, with a store of that kind."""

    @pytest.fixture(params=kinds or STORES)
    async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Checkpointer]:
        async with make_store(request.param, tmp_path) as opened:
            yield opened

    return store


class StoreContract(CheckpointerContract):
    """The contract with the fixture `open_store` of all our tests. A subclass says in a fixture `new_store` how another
    checkpointer is made on the data of its test."""

    @pytest.fixture
    def open_store(self, open_store: OpenStore) -> OpenStore:
        return open_store

    async def test_nothing_is_written_or_deleted_for_a_caller_who_has_gone(self, open_store: OpenStore) -> None:
        store = open_store()
        first = await append(store, "thread", b"first")
        before = is_abandoned.set(lambda: True)
        for late in (append(store, "thread", b"late", at=1), append(store, "another", b"late"), store.delete("thread")):
            with pytest.raises(Unavailable, match="nothing was written"):
                await late
        is_abandoned.reset(before)
        assert await state(store, "thread") == ([b"first"], first, set())
        assert await store.head("another") is None

    async def test_nothing_is_written_for_a_caller_who_goes_while_the_append_waits(self, open_store: OpenStore) -> None:
        """Behind other appends to the thread, that is. Whoever has gone learns that nothing was written, or it is there."""
        store, has_gone = open_store(), False
        await append(store, "thread", b"0")
        ahead = [asyncio.ensure_future(append(store, "thread", b"%d" % at, at=at)) for at in range(1, 4)]
        await asyncio.sleep(0)
        before = is_abandoned.set(lambda: has_gone)
        late = asyncio.ensure_future(append(store, "thread", b"late", at=4))
        is_abandoned.reset(before)
        await asyncio.sleep(0)
        has_gone = True
        done = await asyncio.gather(*ahead, late, return_exceptions=True)
        frames = await store.read("thread")
        for at, result in enumerate(done, 1):
            if isinstance(result, Unavailable) and "nothing was written" in str(result):
                assert frames[at:] == []
            elif not isinstance(result, BaseException):
                assert len(frames) > at
            else:
                assert isinstance(result, Conflict)


class SilentNetwork:
    """A checkpointer that reaches its server through a proxy, which can hold all bytes back."""

    answering: Collection[str] = ()

    def __init__(self, store: Checkpointer, proxy: Proxy, timeout: float = SILENCE) -> None:
        self.store = store
        self.timeout = timeout
        self.freeze = proxy.freeze
        self.thaw = proxy.thaw
