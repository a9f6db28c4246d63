"""What is put on a thread's record by one who does not work on it."""

from __future__ import annotations

import msgspec
import pytest

from clew.checkpointers import Checkpointer, MemoryCheckpointer
from clew.errors import ThreadBusy
from clew.log import MessageAdded, StateSet
from clew.messages import user
from clew.threads import Thread
from clew.threads.maintenance import put_aside
from clew.threads.views.timeline import read_timeline

pytestmark = pytest.mark.anyio


async def kinds(store: Checkpointer) -> list[str]:
    return [mark.kind for mark in (await read_timeline(store, "t")).marks]


async def test_a_new_thread_holds_it_and_is_not_begun() -> None:
    store = MemoryCheckpointer()
    await put_aside(store, "t", StateSet("a", 1))
    head = await store.head("t")
    assert head is not None
    assert (head.frames, head.status, head.lease) == (1, "interrupted", None)
    assert await kinds(store) == []
    async with Thread.open(store, "t") as thread:
        assert thread.checkpoint.state == {"a": 1}
    assert await kinds(store) == ["started", "interrupted"]


async def test_a_crash_on_record_stays_one() -> None:
    store = MemoryCheckpointer()
    thread = await Thread.open(store, "t").__aenter__()
    await thread.append(MessageAdded(user("Hi")))
    thread.abandon()
    head = await store.head("t")
    assert head is not None
    assert head.lease is not None
    gone = msgspec.structs.replace(head.lease, expires_at=head.created_at)
    await store.append("t", [], at=head.frames, head=msgspec.structs.replace(head, lease=gone))
    await put_aside(store, "t", StateSet("a", 1))
    assert (await Thread.load(store, "t")).status == "interrupted"
    async with Thread.open(store, "t") as again:
        assert again.checkpoint.state == {"a": 1}
    assert (await kinds(store))[:3] == ["started", "taken over", "resumed"]


async def test_a_thread_that_somebody_holds_is_busy_and_stays_his() -> None:
    store = MemoryCheckpointer()
    async with Thread.open(store, "t") as thread:
        with pytest.raises(ThreadBusy):
            await put_aside(store, "t", StateSet("a", 1))
        await thread.append(MessageAdded(user("Hi")))


async def test_of_two_who_write_at_once_both_are_heard() -> None:
    class Overtaken(MemoryCheckpointer):
        first = True

        async def append(self, *args: object, **kwargs: object) -> None:
            if self.first:
                self.first = False
                await put_aside(self, "t", StateSet("b", 2))
            await super().append(*args, **kwargs)  # type: ignore[arg-type]

    store = Overtaken()
    await put_aside(store, "t", StateSet("a", 1))
    assert (await Thread.load(store, "t")).state == {"a": 1, "b": 2}
