"""Putting threads into the queue of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from clew import Thread
from clew.agent import Agent
from clew.checkpointers import Head, HeadQuery, MemoryCheckpointer
from clew.errors import InvalidInput, Retry, ThreadNotFound
from clew.log import MessageAdded, Queued, StatusChanged
from clew.messages import plain_text, user
from clew.testing import ScriptedModel
from clew.threads.heads import is_inbox
from clew.workers import Retries, enqueue
from clew.workers.queue import put_back, settle_inbox
from tests.clock import Clock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> AsyncIterator[MemoryCheckpointer]:
    async with MemoryCheckpointer() as opened:
        yield opened


async def queue_of(store: MemoryCheckpointer) -> list[str]:
    return [head.thread_id async for head in store.heads(HeadQuery(order="due"))]


async def inbox_due(store: MemoryCheckpointer) -> Head | None:
    return next((head for head in [h async for h in store.heads(HeadQuery(order="due"))] if is_inbox(head)), None)


async def test_a_new_thread_is_made_for_its_agent_and_is_due_at_once(store: MemoryCheckpointer, clock: Clock) -> None:
    head = await enqueue(store, "t", "Send  the\ninvoices.", agent="clerk", tags={"customer": "acme"})
    assert (head.status, head.agent, head.title, head.tags) == (
        "queued",
        "clerk",
        "Send the invoices.",
        {"customer": "acme"},
    )
    assert head.due is not None
    assert head.queue is not None
    assert (head.due, head.queue.tries) == (head.queue.queued_at, 0)
    assert [head.thread_id async for head in Thread.list(store, HeadQuery(status="queued"))] == ["t"]


async def test_what_was_queued_first_is_due_first_unless_another_matters_more(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    await enqueue(store, "first", "Go.")
    clock.advance(60)
    await enqueue(store, "second", "Go.")
    await enqueue(store, "important", "Go.", priority=1)
    await enqueue(store, "idle", "Go.", priority=-1)
    assert await queue_of(store) == ["important", "first", "second", "idle"]
    clock.advance(2.5 * 3600)
    await enqueue(store, "late but important", "Go.", priority=1)
    assert await queue_of(store) == ["important", "first", "second", "idle", "late but important"]


async def test_a_delayed_thread_is_not_due_before(store: MemoryCheckpointer, clock: Clock) -> None:
    head = await enqueue(store, "t", "Go.", delay=90, priority=9)
    assert head.due is not None
    assert head.queue is not None
    assert head.due - head.queue.queued_at == timedelta(seconds=90)


async def test_a_thread_that_is_done_is_queued_again_with_its_next_prompt(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(["One.", "Two."]), name="clerk", checkpointer=store)
    await agent.run("First.", thread_id="t")
    assert (await enqueue(store, "t", "Second.")).status == "queued"
    assert (await agent.resume(thread_id="t")).output == "Two."
    assert await queue_of(store) == []


async def test_a_thread_that_is_queued_twice_has_one_place_the_earlier_one(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    first = await enqueue(store, "t", "First.")
    clock.advance(60)
    second = await enqueue(store, "t", "Second.")
    assert (second.due, await queue_of(store)) == (first.due, ["t"])
    third = await enqueue(store, "t", priority=2)
    assert third.due is not None
    assert first.due is not None
    assert third.due < first.due
    result = await Agent(ScriptedModel(["Both."]), checkpointer=store).resume(thread_id="t")
    asked = [plain_text(message) for message in (await Thread.load(store, "t")).messages]
    assert (asked[:2], result.output) == (["First.", "Second."], "Both.")


async def test_a_prompt_with_an_id_is_asked_once_however_often_it_is_queued(store: MemoryCheckpointer) -> None:
    for _ in range(3):
        await enqueue(store, "t", "Go.", prompt_id="p-1")
    agent = Agent(ScriptedModel(["Done."]), checkpointer=store)
    await agent.resume(thread_id="t")
    await enqueue(store, "t", "Go.", prompt_id="p-1")
    await agent.resume(thread_id="t")
    state = await Thread.load(store, "t")
    assert [plain_text(message) for message in state.messages] == ["Go.", "Done."]
    assert state.status == "done"


async def test_a_thread_that_somebody_runs_is_not_disturbed_and_takes_the_prompt_in(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Go.")))
        head = await enqueue(store, "t", "And this.")
        assert (head.status, head.due) == ("running", None)
        inbox = await inbox_due(store)
        assert inbox is not None
        assert not await settle_inbox(store, inbox)
        (post,) = await thread.posts()
        await thread.append(post.read, MessageAdded(user("And this.")), StatusChanged("done"))
    assert await settle_inbox(store, inbox)
    assert await queue_of(store) == []


async def test_a_prompt_that_came_too_late_for_the_run_puts_the_thread_into_the_queue(
    store: MemoryCheckpointer,
) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Go.")))
        await enqueue(store, "t", "And this.", priority=3)
        await thread.append(StatusChanged("done"))
    inbox = await inbox_due(store)
    assert inbox is not None
    assert await settle_inbox(store, inbox)
    head = await store.head("t")
    assert head is not None
    assert head.queue is not None
    assert (head.status, head.queue.priority, await queue_of(store)) == ("queued", 3, ["t"])


async def test_the_inbox_of_a_thread_that_is_gone_is_let_go(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Go.")))
        await enqueue(store, "t", "And this.")
    inbox = await inbox_due(store)
    assert inbox is not None
    await store.delete("t")
    assert await settle_inbox(store, inbox)
    assert await queue_of(store) == []


async def test_a_run_of_somebody_takes_a_thread_out_of_the_queue(store: MemoryCheckpointer) -> None:
    await enqueue(store, "t", "Go.")
    assert (await Agent(ScriptedModel(["Done."]), checkpointer=store).resume(thread_id="t")).output == "Done."
    assert await queue_of(store) == []


async def test_a_thread_without_a_name_gets_one_that_workers_find(store: MemoryCheckpointer) -> None:
    await Agent(ScriptedModel(["One."]), checkpointer=store).run("First.", thread_id="t")
    assert (await enqueue(store, "t", "Second.", agent="clerk")).agent == "clerk"
    with pytest.raises(InvalidInput, match="is one of the agent 'clerk', and not of 'cook'"):
        await enqueue(store, "t", "Third.", agent="cook")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ThreadNotFound, "give it a prompt"),
        ({"prompt": " "}, InvalidInput, "a prompt is a text that is not empty"),
        ({"prompt": "Go.", "priority": 10}, InvalidInput, "priority is a whole number from -9 to 9, not 10"),
        ({"prompt": "Go.", "priority": True}, InvalidInput, "priority is a whole number"),
        ({"prompt": "Go.", "delay": -1}, InvalidInput, "a delay is a number of seconds"),
        ({"prompt": "Go.", "delay": float("nan")}, InvalidInput, "a delay is a number of seconds"),
        ({"prompt": "Go.", "prompt_id": "clew:1"}, InvalidInput, "begins like the ids that Clew makes itself"),
        ({"prompt": "Go.", "tags": {"clew:part": "x"}}, InvalidInput, "begins like the tags that Clew keeps"),
    ],
)
async def test_what_cannot_be_queued_is_refused_and_nothing_is_made(
    arguments: dict[str, Any], error: type[Exception], message: str, store: MemoryCheckpointer
) -> None:
    with pytest.raises(error, match=message):
        await enqueue(store, "t", **arguments)
    assert await store.head("t") is None


async def test_an_id_that_is_clews_own_is_refused(store: MemoryCheckpointer) -> None:
    with pytest.raises(InvalidInput, match="begins like the ids"):
        await enqueue(store, "clew:inbox:7", "Go.")


async def test_what_is_redacted_is_in_no_title(store: MemoryCheckpointer) -> None:
    head = await enqueue(store, "t", "The key is hunter2.", redact=["hunter2"])
    assert "hunter2" not in head.title
    assert b"hunter2" not in b"".join([frame async for frame in _all_frames(store)])


async def _all_frames(store: MemoryCheckpointer) -> AsyncIterator[bytes]:
    async for head in store.heads():
        for frame in await store.read(head.thread_id):
            yield frame


async def test_a_fork_of_a_queued_thread_is_not_in_the_queue(store: MemoryCheckpointer) -> None:
    await Agent(ScriptedModel(["One."]), checkpointer=store).run("First.", thread_id="t")
    await enqueue(store, "t", "Second.")
    async with Thread.open(store, "t") as thread:
        fork = await thread.fork("u")
    assert (fork.due, fork.status) == (None, "interrupted")
    copied = await Thread.copy(store, store, "t", new_id="v")
    assert (copied.due, copied.status) == (None, "interrupted")
    assert await queue_of(store) == ["t"]
    assert any(isinstance(queued, Queued) for queued in [(await Thread.load(store, "t")).queued])


async def test_a_worker_that_died_counts_as_one_try_however_many_workers_notice(store: MemoryCheckpointer) -> None:
    await enqueue(store, "t", "Go.", agent="clerk")
    thread = Thread.open(store, "t", label="worker 1")
    await thread.__aenter__()
    thread.abandon()
    seen = await store.head("t")
    assert seen is not None
    first = await put_back(store, seen, Retries(most=3), "it died", Retry("now"))
    assert first is not None
    assert first.queue is not None
    assert (first.status, first.queue.tries) == ("queued", 1)
    for _ in range(3):
        assert await put_back(store, seen, Retries(most=3), "it died", Retry("now")) is None
    assert await store.head("t") == first


async def test_a_run_that_failed_before_it_began_is_counted_once_too(store: MemoryCheckpointer) -> None:
    seen = await enqueue(store, "t", "Go.", agent="clerk")
    first = await put_back(store, seen, Retries(), "no", Retry("now"))
    assert first is not None
    assert first.queue is not None
    assert first.queue.tries == 1
    assert await put_back(store, seen, Retries(), "no", Retry("now")) is None
