"""Threads and stores without an event loop of one's own: in scripts, in threads, in notebooks."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from blake3 import blake3

import clew.checkpointers
from clew.checkpointers import Head, HeadQuery
from clew.errors import Conflict, InvalidInput, ThreadBusy, ThreadNotFound, UsageError
from clew.log import MessageAdded, StateSet
from clew.messages import assistant, user
from clew.sync import Checkpointer, MemoryCheckpointer, SQLiteCheckpointer, Thread, open_checkpointer
from clew.sync._blocking import blocking
from clew.sync._portal import call
from clew.testing.contract.builders import a_head
from tests.limits import PATIENCE

TURN = MessageAdded(user("question")), MessageAdded(assistant("answer"))


@pytest.fixture(params=["memory://", "sqlite:///{}/c.db", "file://{}/threads"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Checkpointer]:
    with open_checkpointer(request.param.format(tmp_path)) as opened:
        yield opened


def test_a_thread_is_written_and_read_without_an_event_loop(store: Checkpointer) -> None:
    with Thread.open(store, "trip") as thread:
        assert isinstance(thread, Thread)
        thread.append(*TURN)
        thread.append(*TURN, StateSet("city", "Paris"))
        thread.flush()
        assert (thread.thread_id, thread.checkpoint.turns, thread.head.turns) == ("trip", 2, 2)
        assert thread.fork("aside", at_turn=1).parent == ("trip", 1)
        thread.rewind(to_turn=1)
        thread.save(Thread.load(store, "aside"))
    state = Thread.load(store, "trip")
    assert (state.turns, state.status) == (1, "interrupted")
    assert Thread.load(store, "aside").parent == ("trip", 1)
    with Thread.open(store, "aside") as thread:
        thread.delete()
    assert [head.thread_id for head in Thread.list(store)] == ["trip"]
    with pytest.raises(ThreadNotFound):
        Thread.load(store, "aside")


def test_every_method_of_the_contract_blocks(store: Checkpointer) -> None:
    digest = blake3(b"large").hexdigest()
    store.put_blobs({digest: b"large"})
    assert store.get_blobs([digest]) == {digest: b"large"}
    assert store.missing_blobs([digest, "0" * 64]) == {"0" * 64}
    head = a_head("t", 1)
    store.append("t", [b"frame"], at=0, head=head, refs=[digest])
    assert store.read("t") == [b"frame"]
    assert store.head("t") == head
    assert list(store.heads()) == [head]
    assert store.refs("t") == {digest}
    store.delete("t")
    assert store.head("t") is None
    assert list(store.blobs(untouched_for=timedelta(0))) == [digest]
    store.delete_blobs([digest], untouched_for=timedelta(0))
    assert list(store.blobs(untouched_for=timedelta(0))) == []
    store.close()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.read("t")


def test_a_store_of_any_class_is_of_the_blocking_class(tmp_path: Path) -> None:
    with open_checkpointer(f"sqlite:///{tmp_path}/c.db") as opened, SQLiteCheckpointer(tmp_path / "c.db") as made:
        assert isinstance(opened, SQLiteCheckpointer)
        assert isinstance(opened, Checkpointer)
        assert type(opened) is type(made)
        assert opened.keys is None
    with MemoryCheckpointer() as one, MemoryCheckpointer(beside=one) as other:
        with Thread.open(one, "t") as thread:
            thread.append(*TURN)
        assert Thread.load(other, "t").turns == 1
    with pytest.raises(TypeError, match="abstract"):
        Checkpointer()


def test_errors_keep_their_type_and_show_both_sides(store: Checkpointer) -> None:
    with Thread.open(store, "t"), pytest.raises(ThreadBusy), Thread.open(store, "t"):
        pass
    with pytest.raises(InvalidInput, match="cannot be empty"):
        store.head("")
    with pytest.raises(Conflict):
        store.append("t", [b"frame"], at=7, head=a_head("t", 8))
    with pytest.raises(ThreadNotFound) as caught:
        Thread.load(store, "nope")
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[0] == __file__
    assert files[-1].endswith("reader.py")
    assert len([name for name in files if "/clew/sync/" in name]) <= 5
    assert not any("asyncio" in name for name in files)


class Pages(clew.checkpointers.MemoryCheckpointer):
    """A store that shows how far it was read."""

    given = 0
    closed = threading.Event()

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        try:
            for number in range(100):
                Pages.given = number + 1
                yield a_head(f"t{number}")
        finally:
            Pages.closed.set()


def test_a_listing_is_read_as_it_is_asked_for_and_closed_when_it_is_given_up() -> None:
    pages: Checkpointer
    with blocking(Pages)() as pages:
        listing = pages.heads()
        assert Pages.given == 0
        assert [next(listing).thread_id, next(listing).thread_id] == ["t0", "t1"]
        assert Pages.given == 2
        assert not Pages.closed.is_set()
        del listing
        assert Pages.closed.wait(PATIENCE)


def test_many_threads_use_one_store_at_once(store: Checkpointer) -> None:
    def work(number: int) -> int:
        with Thread.open(store, f"t{number}") as thread:
            for _ in range(5):
                thread.append(*TURN)
        return Thread.load(store, f"t{number}").turns

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [5] * 16
    assert len(list(store.heads())) == 16


def test_one_thread_of_work_is_appended_to_from_many_threads(store: Checkpointer) -> None:
    with Thread.open(store, "shared") as thread, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: thread.append(MessageAdded(user(str(number)))), range(40)))
        assert len(thread.checkpoint.messages) == 40
    assert sorted(int(str(m.content[0].text)) for m in Thread.load(store, "shared").messages) == list(range(40))  # type: ignore[union-attr]


def test_there_is_one_loop_in_one_thread_for_all(store: Checkpointer) -> None:
    with MemoryCheckpointer() as other:
        store.head("t")
        other.head("t")
    assert len([thread for thread in threading.enumerate() if thread.name == "clew.sync"]) == 1


def test_it_works_where_a_loop_is_running_already_as_in_a_notebook(store: Checkpointer) -> None:
    async def cell() -> int:
        with Thread.open(store, "t") as thread:
            thread.append(*TURN)
        await asyncio.sleep(0)
        return sum(head.turns for head in Thread.list(store))

    assert asyncio.run(cell()) == 1
    assert asyncio.run(cell()) == 2


def test_a_call_from_inside_its_own_loop_is_refused_instead_of_waiting_for_ever() -> None:
    async def back_inside() -> None:
        with pytest.raises(UsageError, match="would wait for itself for ever"):
            memory.head("t")

    with MemoryCheckpointer() as memory:
        memory.head("t")
        call(back_inside)
        with pytest.raises(UsageError, match="own event loop"):
            call(Thread.load, memory, "t")


def test_an_async_store_belongs_to_the_loop_it_was_used_on() -> None:
    async def main() -> None:
        async with clew.checkpointers.MemoryCheckpointer() as mine:
            await mine.head("t")
            with pytest.raises(UsageError, match="another event loop"):
                Thread.load(mine, "t")  # type: ignore[arg-type]

    asyncio.run(main())
