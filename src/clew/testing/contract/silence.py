"""Tests that every store on a server has to pass for a silent server, which accepts connections and does not answer:
every call must end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import pytest

from clew.checkpointers.base import Checkpointer
from clew.errors import Unavailable
from clew.testing.contract.builders import append, every_call

__all__ = ["FreezableStore", "SilenceContract"]

T = TypeVar("T")

GUARD = 120.0
"""Seconds after which a test decides that a call never ends. This is much longer than the `timeout` with which the
store is opened, so that the speed of the machine does not decide whether a test passes."""


class FreezableStore(Protocol):
    """The interface of an object that you write to run `SilenceContract` on a store with a server: the checkpointer
    `store`, and methods that stop its server from answering and let it answer again.

    Open the checkpointer with a `timeout` of about 2 seconds, because the tests wait that long several times.
    """

    store: Checkpointer

    def freeze(self) -> None:
        """Make the server silent: connections stay open and new ones are accepted, but no request is answered. On Linux
        and macOS you can send SIGSTOP to all processes of the server."""

    def thaw(self) -> None:
        """Let the server answer again, also the requests that it got while it was silent."""


class SilenceContract:
    """Tests that no call of a checkpointer waits for ever if its server is silent: the server accepts connections and
    does not answer. The call must raise `Unavailable` after a time without progress."""

    @pytest.mark.parametrize("count", [1, 2, 20])
    async def test_calls_to_a_silent_server_all_end_and_lose_nothing(
        self, freezable_store: FreezableStore, count: int
    ) -> None:
        """Test that `count` calls to a silent server all end with `Unavailable`. Every second call is an append, each
        to another thread. When the server works again, these appends are repeated, and their frames must then be stored
        exactly once."""
        store = freezable_store.store
        await available(lambda: append(store, "before", b"one"))
        freezable_store.freeze()
        try:
            calls = [
                append(store, f"thread {number}", b"frame") if number % 2 else store.read("before")
                for number in range(count)
            ]
            results = await _ended(calls)
        finally:
            freezable_store.thaw()
        assert {type(result) for result in results} == {Unavailable}
        for number in range(1, count, 2):
            await available(lambda number=number: append(store, f"thread {number}", b"frame"))  # type: ignore[misc]
            assert await available(lambda number=number: store.read(f"thread {number}")) == [b"frame"]  # type: ignore[misc]
        assert await available(lambda: store.read("before")) == [b"one"]

    async def test_every_kind_of_call_to_a_silent_server_ends(self, freezable_store: FreezableStore) -> None:
        store = freezable_store.store
        await available(lambda: append(store, "before", b"one"))
        freezable_store.freeze()
        try:
            calls = every_call(store)
            results = await _ended([call() for call in calls.values()])
        finally:
            freezable_store.thaw()
        assert dict.fromkeys(calls, Unavailable) == dict(zip(calls, map(type, results), strict=True))
        assert await available(lambda: store.read("before")) == [b"one"]

    async def test_appends_that_wait_for_each_other_at_a_silent_server_all_end(
        self, freezable_store: FreezableStore
    ) -> None:
        """Test that ten appends to the same thread all end with `Unavailable` if the server is silent, and that this
        takes less than five times as long as for a single append. A store makes such appends one after the other, but
        the time in which a call waits for others must count as time without progress too."""
        store = freezable_store.store
        await available(lambda: append(store, "thread", b"one"))
        freezable_store.freeze()
        try:
            began = time.monotonic()
            await _ended([append(store, "thread", b"two", at=1)])
            single = time.monotonic() - began
            results = await _ended([append(store, "thread", b"two", at=1) for _ in range(10)])
            together = time.monotonic() - began - single
        finally:
            freezable_store.thaw()
        assert {type(result) for result in results} == {Unavailable}
        assert together < 5 * single, "calls that wait for each other give up one after the other"
        await available(lambda: append(store, "thread", b"two", at=1))
        assert await available(lambda: store.read("thread")) == [b"one", b"two"]

    async def test_a_cancelled_append_to_a_silent_server_ends(self, freezable_store: FreezableStore) -> None:
        store = freezable_store.store
        await available(lambda: append(store, "thread", b"one"))
        freezable_store.freeze()
        try:
            task = asyncio.ensure_future(append(store, "thread", b"two", at=1))
            await asyncio.sleep(0.05)
            task.cancel()
            [result] = await _ended([task])
        finally:
            freezable_store.thaw()
        assert isinstance(result, asyncio.CancelledError)
        await available(lambda: append(store, "thread", b"two", at=1))
        assert await available(lambda: store.read("thread")) == [b"one", b"two"]

    async def test_closing_with_calls_to_a_silent_server_ends(self, freezable_store: FreezableStore) -> None:
        store = freezable_store.store
        await available(lambda: append(store, "thread", b"one"))
        freezable_store.freeze()
        try:
            calls = [asyncio.ensure_future(append(store, f"thread {number}", b"frame")) for number in range(3)]
            await asyncio.sleep(0.05)
            [closed] = await _ended([store.close()])
            results = await _ended(calls)
        finally:
            freezable_store.thaw()
        assert closed is None
        assert {type(result) for result in results} == {Unavailable}


async def available(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call, repeat it as long as it raises `Unavailable`, and return its result. Raises `TimeoutError` after
    `GUARD` seconds. A server that was silent may be slow for a while, so tests make their calls through this."""
    async with asyncio.timeout(GUARD):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.1)


async def _ended(calls: Sequence[Awaitable[object]]) -> list[object]:
    """Make these calls at the same time, and return a list with the result of each, or with the error that it raised.
    Fails the test if a call has not ended after `GUARD` seconds."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    done, pending = await asyncio.wait(tasks, timeout=GUARD)
    errors = {task: asyncio.CancelledError() if task.cancelled() else task.exception() for task in done}
    assert not pending, f"{len(pending)} of {len(tasks)} calls do not end"
    return [errors[task] or task.result() for task in tasks]
