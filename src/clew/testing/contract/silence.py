"""Tests that a store has to pass for a silent server, which accepts connections and does not answer, and for another
process that has locked the store and was stopped. In both cases every call must end within a set time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import pytest

from clew.checkpointers.base import Checkpointer
from clew.errors import Unavailable
from clew.testing.contract.builders import append, every_call

__all__ = ["FreezableStore", "SilenceContract"]

T = TypeVar("T")

GUARD = 120.0
"""Seconds after which a test decides that a call never ends."""
TIMES = 3
"""How many times as long as the store's `timeout` a call may take to end. A call may wait for a connection that an
earlier call has begun to make, and a store may look at its clock only now and then."""
_TICK = 0.05


class FreezableStore(Protocol):
    """The interface of an object that you write to run `SilenceContract` on a store that has a server or uses locks. It
    has the checkpointer `store`, a method that stops the store's server from answering, and a method that lets the
    server answer again.

    Open the checkpointer with a `timeout` of about 2 seconds, because the tests wait that long several times.
    """

    store: Checkpointer
    timeout: float
    """The seconds without progress after which calls of `store` are to end, as it was opened with."""
    answering: Collection[str]
    """The methods of the checkpointer that work although the store is frozen: none, if it has a server. A store without
    one may be able to read while another process has locked it for writes."""

    def freeze(self) -> None:
        """Make the server silent: connections stay open and new ones are accepted, but no request is answered. On Linux
        and macOS you can send SIGSTOP to all processes of the server. For a store without a server, let another process
        lock it, and stop that process."""

    def thaw(self) -> None:
        """Let the server answer again, also the requests that it got while it was silent."""


class SilenceContract:
    """Tests that no call of a checkpointer waits for ever if its server is silent: the server accepts connections and
    does not answer. The call must raise `Unavailable` after the `timeout` in seconds that the checkpointer was opened
    with. A call that takes three times as long fails the test. Time during which other work of this process kept the
    event loop busy is not counted."""

    @pytest.mark.parametrize("count", [1, 2, 20])
    async def test_calls_to_a_silent_server_all_end_and_lose_nothing(
        self, freezable_store: FreezableStore, count: int
    ) -> None:
        """Test that `count` calls to a silent server all end in time with `Unavailable`. Every second call is an append,
        each to another thread. When the server works again, these appends are repeated, and their frames must then be
        stored exactly once."""
        store = freezable_store.store
        await available(lambda: append(store, "before", b"one"))
        freezable_store.freeze()
        try:
            calls = [
                append(store, f"thread {number}", b"frame") if number % 2 else store.read("before")
                for number in range(count)
            ]
            results = await _ended(freezable_store, calls)
        finally:
            freezable_store.thaw()
        names = ["append" if number % 2 else "read" for number in range(count)]
        _check(freezable_store, zip(names, results, strict=True))
        assert {"read"}.isdisjoint(freezable_store.answering) or all(read == [b"one"] for read in results[::2])
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
            results = await _ended(freezable_store, [call() for call in calls.values()])
        finally:
            freezable_store.thaw()
        _check(freezable_store, zip(calls, results, strict=True))
        assert await available(lambda: store.read("before")) == [b"one"]

    async def test_appends_that_wait_for_each_other_at_a_silent_server_all_end(
        self, freezable_store: FreezableStore
    ) -> None:
        """Test that ten appends to the same thread, made at the same time, all end in time with `Unavailable` if the
        server is silent. A store makes such appends one after the other. The time during which an append waits for the
        appends before it must count toward its timeout."""
        store = freezable_store.store
        await available(lambda: append(store, "thread", b"one"))
        freezable_store.freeze()
        try:
            results = await _ended(freezable_store, [append(store, "thread", b"two", at=1) for _ in range(10)])
        finally:
            freezable_store.thaw()
        assert {type(result) for result in results} == {Unavailable}
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
            [result] = await _ended(freezable_store, [task])
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
            closed, *results = await _ended(freezable_store, [store.close(), *calls])
        finally:
            freezable_store.thaw()
        assert closed is None
        assert {type(result) for result in results} == {Unavailable}


async def available(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call, repeat it as long as it raises `Unavailable`, and return its result. Raises `TimeoutError` after
    `GUARD` (120) seconds. Tests use this for calls of a server that was silent, because such a server may be slow for a
    while."""
    async with asyncio.timeout(GUARD):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.1)


async def _ended(frozen: FreezableStore, calls: Sequence[Awaitable[object]]) -> list[object]:
    """Make these calls of the frozen store at the same time, and return a list with the result of each, or with the
    error that it raised. Fails the test if a call takes longer than three times the store's `timeout`. Time during
    which other work kept the event loop busy is not counted."""
    clock = asyncio.get_running_loop().time
    began = clock()
    ended: dict[asyncio.Future[object], float] = {}
    tasks = [asyncio.ensure_future(call) for call in calls]
    for task in tasks:
        task.add_done_callback(lambda task: ended.setdefault(task, clock()))
    async with _measured_delay() as delay:
        done, pending = await asyncio.wait(tasks, timeout=GUARD)
    errors = {task: asyncio.CancelledError() if task.cancelled() else task.exception() for task in done}
    assert not pending, f"{len(pending)} of {len(tasks)} calls do not end"
    limit = TIMES * frozen.timeout + delay()
    late = [ended[task] - began for task in tasks if ended[task] - began > limit]
    assert not late, (
        f"{len(late)} of {len(tasks)} calls end too late: the last after {max(late):.1f} s, with timeout={frozen.timeout:g}"
    )
    return [errors[task] or task.result() for task in tasks]


@asynccontextmanager
async def _measured_delay() -> AsyncIterator[Callable[[], float]]:
    """Measure for how long other work keeps the event loop busy during the `with` block. The block gets a function that
    returns the seconds measured so far."""
    clock = asyncio.get_running_loop().time
    delay = 0.0

    async def measure() -> None:
        nonlocal delay
        while True:
            due = clock() + _TICK
            await asyncio.sleep(_TICK)
            delay += max(0.0, clock() - due)

    measuring = asyncio.ensure_future(measure())
    try:
        yield lambda: delay
    finally:
        measuring.cancel()
        await asyncio.wait([measuring])


def _check(frozen: FreezableStore, results: Iterable[tuple[str, object]]) -> None:
    """Fail the test unless each of these calls ended with `Unavailable`. The calls were made while the store's server
    was silent, and are given as pairs of the method's name and the result or error. Calls of the methods in
    `frozen.answering`, which the store still answers, must have a result instead."""
    wrong = {
        name: result
        for name, result in results
        if (isinstance(result, BaseException) if name in frozen.answering else type(result) is not Unavailable)
    }
    assert wrong == {}
