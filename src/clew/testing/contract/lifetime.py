"""Tests that every store has to pass for opening, closing and misuse of a checkpointer, and for a store that cannot be
reached."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import warnings

import pytest

from clew.checkpointers.base import Checkpointer
from clew.errors import Unavailable, UsageError
from clew.testing.contract.builders import (
    OpenStore,
    all_blobs,
    append,
    every_call,
    heads,
    listed,
    put,
    state,
)


class LifetimeContract:
    """Tests that misuse of a checkpointer, such as a call after it was closed, raises an error that says what is wrong,
    and never returns an empty answer."""

    async def test_a_store_closed_and_opened_again_holds_everything(self, open_store: OpenStore) -> None:
        store = open_store()
        [blob] = await put(store, b"blob")
        head = await append(store, "thread", b"one", b"two", refs=[blob], tags={"a": "1"})
        await append(store, "deleted", b"one")
        await store.delete("deleted")
        await store.close()
        again = open_store()
        assert await state(again, "thread") == ([b"one", b"two"], head, {blob})
        assert await heads(again) == [head]
        assert await again.get_blobs([blob]) == {blob: b"blob"}
        await append(again, "thread", b"three", at=2)
        await again.close()
        assert await open_store().read("thread") == [b"one", b"two", b"three"]

    async def test_a_closed_checkpointer_refuses_every_call(self, open_store: OpenStore) -> None:
        used, unused = open_store(), open_store()
        await append(used, "thread", b"frame")
        for store in (used, unused):
            await store.close()
            assert await _not_refused(store) == {}
        assert await open_store().read("thread") == [b"frame"]

    async def test_closing_twice_is_no_error(self, open_store: OpenStore) -> None:
        used, unused = open_store(), open_store()
        await append(used, "thread", b"frame")
        for store in (used, unused):
            await store.close()
            await store.close()

    async def test_closing_one_checkpointer_leaves_the_others_open(self, open_store: OpenStore) -> None:
        first, second, third = open_store(), open_store(), open_store("another namespace")
        for store in (first, second, third):
            await append(store, "thread", b"frame")
        await first.close()
        await append(second, "thread", b"more", at=1)
        assert await second.read("thread") == [b"frame", b"more"]
        assert await third.read("thread") == [b"frame"]

    async def test_closing_waits_for_what_is_under_way(self, open_store: OpenStore) -> None:
        store = open_store()
        tasks = [asyncio.create_task(append(store, f"thread {n}", b"frame")) for n in range(10)]
        await asyncio.sleep(0)
        await store.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results if isinstance(result, BaseException)} <= {UsageError}
        kept = {f"thread {n}" for n, result in enumerate(results) if not isinstance(result, BaseException)}
        assert set(await listed(open_store())) == kept

    async def test_async_with_closes_at_its_end(self, open_store: OpenStore) -> None:
        async with open_store() as store:
            await append(store, "thread", b"frame")
        with pytest.raises(UsageError):
            await store.head("thread")

    async def test_use_on_a_second_event_loop_is_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"frame")
        before = await state(store, "thread")
        taken = await asyncio.to_thread(lambda: asyncio.run(_not_refused(store)))
        assert taken == {}
        assert await state(store, "thread") == before
        assert await all_blobs(store) == []

    @pytest.mark.skipif(sys.platform == "win32", reason="no fork on Windows")
    async def test_use_in_a_forked_child_is_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        await append(store, "thread", b"frame")
        before = await state(store, "thread")
        assert await asyncio.to_thread(_in_forked_child, store) == {}
        assert await state(store, "thread") == before
        await append(store, "thread", b"more", at=1)
        assert await open_store().read("thread") == [b"frame", b"more"]

    async def test_an_unreachable_store_is_unavailable_and_never_absent(self, unreachable_store: Checkpointer) -> None:
        for name, call in every_call(unreachable_store).items():
            with pytest.raises(Unavailable):
                pytest.fail(f"{name} on a store out of reach returned {await call()!r}")

    async def test_an_unreachable_store_can_be_closed(self, unreachable_store: Checkpointer) -> None:
        with pytest.raises(Unavailable):
            await unreachable_store.head("thread")
        await unreachable_store.close()
        with pytest.raises(UsageError):
            await unreachable_store.head("thread")


async def _not_refused(store: Checkpointer) -> dict[str, str]:
    """Call every method of a checkpointer once. The checkpointer must refuse all calls with `UsageError`, for example
    because it is closed. Return the calls that it did not refuse: a dict from the method's name to the value that it
    returned, or to the error that it raised instead, as text. The dict is empty if all were refused."""
    taken = {}
    for name, call in every_call(store).items():
        try:
            taken[name] = repr(await call())
        except UsageError:
            continue
        except Exception as error:  # noqa: BLE001 - any other error is what the caller wants to see
            taken[name] = repr(error)
    return taken


def _in_forked_child(store: Checkpointer) -> dict[str, str]:
    """Test a checkpointer in a forked child process, where every call must be refused with `UsageError`. The child
    calls every method once, and then closes the checkpointer.

    Return the calls that were not refused: a dict from the method's name to what it returned or raised, as text; empty
    if all were refused. If the child itself fails or hangs, the dict has the key `the child`.
    """
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of a fork beside other OS threads: this child only makes calls and exits
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)

            async def ask() -> dict[str, str]:
                taken = await _not_refused(store)
                await store.close()
                return taken

            os.write(send, json.dumps(asyncio.run(ask())).encode())
        except BaseException as error:  # noqa: BLE001 - the child must not return into the test run
            os.write(send, json.dumps({"the child": repr(error)}).encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    result: dict[str, str] = json.loads(answer or b'{"the child": "hung"}')
    return result
