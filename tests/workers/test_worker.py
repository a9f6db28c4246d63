"""Workers: each thread of the queue is run once, whatever happens to those that run them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clew import Thread
from clew.agent import Agent
from clew.checkpointers import Checkpointer, Head, HeadQuery, MemoryCheckpointer
from clew.errors import Corrupt, InvalidInput, ModelRefused, ModelUnavailable, Unavailable, UsageError
from clew.log import MessageAdded
from clew.messages import plain_text, user
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.threads.heads import is_inbox
from clew.tools import AnyTool, ToolContext, tool
from clew.workers import Retries, Worker, enqueue
from clew.workers.events import Ended, Taken, WorkerEvent
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> AsyncIterator[MemoryCheckpointer]:
    async with MemoryCheckpointer() as opened:
        yield opened


class Office:
    """Agents that do one thing with an effect, and workers that run them."""

    def __init__(self, store: Checkpointer) -> None:
        self.store = store
        self.sent: list[str] = []
        self.now = self.most = 0
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.events: list[WorkerEvent] = []

    @property
    def send(self) -> AnyTool:
        @tool(effect="once")
        async def send(ctx: ToolContext) -> str:
            self.now += 1
            self.most = max(self.most, self.now)
            self.begun.set()
            await self.go_on.wait()
            await asyncio.sleep(0)
            self.sent.append(ctx.thread_id)
            self.now -= 1
            return "sent"

        return send

    def agent(self, *script: Response, name: str = "clerk") -> Agent:
        return Agent(
            ScriptedModel(list(script) or [call("send"), call("send"), "Sent."]),
            name=name,
            tools=[self.send],
            checkpointer=self.store,
        )

    def worker(self, *agents: Agent, **options: Any) -> Worker:
        return Worker(agents or [self.agent()], store=self.store, poll=0.01, on_event=self.events.append, **options)

    def taken(self) -> list[str]:
        return [event.thread_id for event in self.events if isinstance(event, Taken)]

    def endings(self) -> list[str]:
        return [event.status for event in self.events if isinstance(event, Ended)]


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def status_of(store: Checkpointer, thread_id: str = "t") -> str:
    head = await store.head(thread_id)
    assert head is not None
    return head.status


async def test_workers_share_a_queue_and_each_thread_is_run_once(store: MemoryCheckpointer) -> None:
    office = Office(store)
    for number in range(20):
        await enqueue(store, f"t-{number}", "Send.", agent="clerk")
    workers = [office.worker(concurrency=3, label=f"worker {number}") for number in range(3)]
    await asyncio.gather(*(worker.run(until_empty=True) for worker in workers))
    assert sorted(office.sent) == sorted([f"t-{number}" for number in range(20)] * 2)
    assert [head.status async for head in Thread.list(store)] == ["done"] * 20
    assert [head async for head in store.heads(HeadQuery(order="due"))] == []


async def test_a_run_that_failed_is_tried_again_after_a_pause(store: MemoryCheckpointer, clock: Clock) -> None:
    failures = [ModelUnavailable("m", "a timeout", attempts=1), None]

    def script(request: ModelRequest) -> Response:
        failure = failures.pop(0)
        return "Done." if failure is None else failure

    office = Office(store)
    agent = Agent(ScriptedModel(script), name="clerk", checkpointer=store)
    await enqueue(store, "t", "Go.", agent="clerk")
    await office.worker(agent).run(until_empty=True)
    head = await store.head("t")
    assert head is not None
    assert head.queue is not None
    assert (head.status, head.queue.tries, failures) == ("queued", 1, [None])
    clock.advance(11)
    await office.worker(agent).run(until_empty=True)
    assert (await status_of(store), office.endings()) == ("done", ["queued", "done"])


async def test_a_thread_that_fails_every_time_is_set_aside_with_the_reason(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    office = Office(store)
    agent = Agent(ScriptedModel([Unlucky("no such row")], by="turns"), name="clerk", checkpointer=store)
    await enqueue(store, "t", "Go.", agent="clerk")
    for _ in range(6):
        await office.worker(agent, retries=Retries(most=3)).run(until_empty=True)
        clock.advance(60)
    assert office.endings() == ["queued", "queued", "failed"]
    state = await Thread.load(store, "t")
    assert state.reason == "set aside after 3 tries without a new turn; the last one: Unlucky: no such row"
    assert state.queued is None


class Unlucky(Exception):
    pass


async def test_a_thread_that_can_never_succeed_is_not_tried_again(store: MemoryCheckpointer) -> None:
    office = Office(store)
    agent = Agent(ScriptedModel([ModelRefused("m", "a bad key")]), name="clerk", checkpointer=store)
    await enqueue(store, "t", "Go.", agent="clerk")
    await office.worker(agent).run(until_empty=True)
    assert (await status_of(store), office.endings()) == ("failed", ["failed"])
    assert "bad key" in (await Thread.load(store, "t")).reason


async def test_tries_that_bring_the_work_on_are_not_counted(store: MemoryCheckpointer, clock: Clock) -> None:
    refused: set[int] = set()

    def script(request: ModelRequest) -> Response:
        turn = sum(message.__class__.__name__ == "Assistant" for message in request.messages)
        if turn not in refused:
            refused.add(turn)
            raise ModelUnavailable("m", "a timeout", attempts=1)
        return "Sent." if turn == 8 else call("send")

    office = Office(store)
    agent = Agent(ScriptedModel(script), name="clerk", tools=[office.send], checkpointer=store)
    await enqueue(store, "t", "Go.", agent="clerk")
    for _ in range(10):
        await office.worker(agent, retries=Retries(most=2)).run(until_empty=True)
        clock.advance(60)
    assert (await status_of(store), len(office.sent)) == ("done", 8)


async def test_a_worker_that_is_drained_ends_open_turns_and_gives_the_threads_back(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    office = Office(store)
    office.go_on.clear()
    first = await enqueue(store, "t", "Send.", agent="clerk")
    worker = office.worker()
    running = asyncio.create_task(worker.run())
    await office.begun.wait()
    worker.drain()
    clock.advance(1)
    office.go_on.set()
    await running
    head = await store.head("t")
    assert head is not None
    assert head.queue is not None
    assert (head.status, head.due, head.turns, head.queue.tries) == ("queued", first.due, 1, 0)
    assert (await Thread.load(store, "t")).reason == "its worker was shut down"
    await office.worker().run(until_empty=True)
    assert (office.sent, await status_of(store)) == (["t", "t"], "done")


async def test_a_worker_that_is_cancelled_gives_the_threads_back_too(store: MemoryCheckpointer) -> None:
    office = Office(store)
    office.go_on.clear()
    await enqueue(store, "t", "Send.", agent="clerk")
    running = asyncio.create_task(office.worker().run())
    await office.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await status_of(store) == "queued"
    office.go_on.set()
    await office.worker().run(until_empty=True)
    assert await status_of(store) == "done"
    assert "It is not known whether send took effect" in str((await Thread.load(store, "t")).messages)


async def _die(store: Checkpointer, thread_id: str) -> None:
    """Leave a thread as a worker does that is killed while it runs it."""
    thread = Thread.open(store, thread_id, label="worker 1")
    await thread.__aenter__()
    thread.abandon()


async def test_the_thread_of_a_worker_that_died_is_taken_by_another(store: MemoryCheckpointer) -> None:
    office = Office(store)
    await enqueue(store, "t", "Send.", agent="clerk")
    await _die(store, "t")
    assert await status_of(store) == "running"
    worker = office.worker()
    await worker.run(until_empty=True)
    assert (await status_of(store), worker.counts.recovered, office.sent) == ("done", 1, ["t", "t"])


class Damaged(MemoryCheckpointer):
    """A store whose thread `bad`, and the inbox of that thread, cannot be read, once it is damaged."""

    is_damaged = is_unreadable = False

    async def head(self, thread_id: str) -> Head | None:
        if self.is_unreadable and thread_id == "bad":
            raise Corrupt(f"thread {thread_id!r}: its head is damaged")
        return await super().head(thread_id)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        head = await self.head(thread_id)
        assert head is not None
        if self.is_damaged and (thread_id == "bad" or (head.parent is not None and head.parent[0] == "bad")):
            raise Corrupt(f"thread {thread_id!r}: damaged")
        return await super().read(thread_id, start=start, stop=stop)


async def test_a_damaged_thread_of_a_worker_that_died_does_not_end_other_workers() -> None:
    async with Damaged() as store:
        office = Office(store)
        for thread_id in ("bad", "good"):
            await enqueue(store, thread_id, "Send.", agent="clerk")
            await _die(store, thread_id)
        store.is_damaged = True
        worker = office.worker()
        await worker._sweep()
        assert worker.counts.recovered == 1
        assert (await status_of(store, "bad"), await status_of(store, "good")) == ("running", "queued")


async def test_a_thread_whose_head_is_found_damaged_as_it_is_taken_is_left_alone() -> None:
    async with Damaged() as store:
        office = Office(store)
        for thread_id in ("bad", "good"):
            await enqueue(store, thread_id, "Send.", agent="clerk")
        store.is_unreadable = True
        worker = office.worker()
        await worker._fill()
        await asyncio.gather(*worker._tasks.values())
        assert (await status_of(store, "good"), worker._may_take(await _listed(store, "bad"))) == ("done", False)


async def _listed(store: Checkpointer, thread_id: str) -> Head:
    return [head async for head in store.heads(HeadQuery(prefix=thread_id))][0]  # noqa: RUF015 - of an async generator


async def test_a_damaged_inbox_does_not_keep_a_worker_from_other_threads() -> None:
    async with Damaged() as store:
        office = Office(store)
        await enqueue(store, "bad", "Send.", agent="clerk")
        async with Thread.open(store, "bad", label="worker 1"):
            await enqueue(store, "bad", "Send more.", agent="clerk")
        await Thread.open(store, "bad").__aenter__()
        await enqueue(store, "good", "Send.", agent="clerk")
        store.is_damaged = True
        worker = office.worker()
        for _ in range(3):
            await worker._fill()
        await asyncio.gather(*worker._tasks.values())
        assert await status_of(store, "good") == "done"


async def test_a_thread_that_kills_its_workers_is_set_aside(store: MemoryCheckpointer) -> None:
    office = Office(store)
    await enqueue(store, "t", "Send.", agent="clerk")
    for _ in range(2):
        await _die(store, "t")
        worker = office.worker(retries=Retries(most=2), concurrency=1)
        await worker._sweep()
    assert await status_of(store) == "failed"
    reason = (await Thread.load(store, "t")).reason
    assert reason.startswith("set aside after 2 tries without a new turn; the last one: process ")
    assert reason.endswith("(worker 1) ended without a word")


async def test_a_thread_of_a_live_worker_is_left_to_it(store: MemoryCheckpointer) -> None:
    office = Office(store)
    await enqueue(store, "t", "Send.", agent="clerk")
    async with Thread.open(store, "t", label="worker 1"):
        worker = office.worker()
        await worker._sweep()
        assert await status_of(store) == "running"
        assert worker.counts.recovered == 0
    assert await status_of(store) == "queued"


async def test_limits_hold_for_all_workers_together(store: MemoryCheckpointer) -> None:
    office = Office(store)
    for number in range(12):
        await enqueue(store, f"t-{number}", "Send.", agent="clerk", tags={"customer": "acme"})
    workers = [office.worker(concurrency=8, limits={"tag:customer=acme": 2, "tenant": 10}) for _ in range(2)]
    await asyncio.gather(*(worker.run(until_empty=True) for worker in workers))
    assert (office.most, len(office.sent)) == (2, 24)
    assert [head async for head in Thread.list(store) if head.status != "done"] == []


async def test_no_agent_and_no_customer_waits_until_all_others_are_done(store: MemoryCheckpointer) -> None:
    office = Office(store)
    for number in range(6):
        await enqueue(store, f"big-{number}", "Send.", agent="clerk", tags={"customer": "big"})
    await enqueue(store, "small", "Send.", agent="clerk", tags={"customer": "small"})
    await enqueue(store, "cook", "Send.", agent="cook")
    await office.worker(office.agent(), office.agent(name="cook"), concurrency=1).run(until_empty=True)
    assert {"small", "cook"} <= set(office.taken()[:3])
    assert [name for name in office.taken() if name.startswith("big")] == [f"big-{number}" for number in range(6)]


async def test_a_worker_takes_only_threads_of_its_agents_with_its_tags(store: MemoryCheckpointer) -> None:
    office = Office(store)
    await enqueue(store, "gpu", "Send.", agent="clerk", tags={"needs": "gpu"})
    await enqueue(store, "plain", "Send.", agent="clerk")
    await enqueue(store, "other", "Send.", agent="cook", tags={"needs": "gpu"})
    await office.worker(tags={"needs": "gpu"}).run(until_empty=True)
    assert office.taken() == ["gpu"]


async def test_what_waits_for_a_person_leaves_the_queue_until_it_is_answered(store: MemoryCheckpointer) -> None:
    @tool
    async def name(ctx: ToolContext) -> str:
        return f"the name is {await ctx.interrupt('What is its name?')}"

    office = Office(store)
    agent = Agent(ScriptedModel([call("name"), "Named."]), name="clerk", tools=[name], checkpointer=store)
    await enqueue(store, "t", "Name it.", agent="clerk")
    await office.worker(agent).run(until_empty=True)
    assert (await status_of(store), office.endings()) == ("waiting", ["waiting"])
    await enqueue(store, "t", answer="Ada")
    await office.worker(agent).run(until_empty=True)
    assert (await status_of(store), office.endings()) == ("done", ["waiting", "done"])
    assert "the name is Ada" in str((await Thread.load(store, "t")).messages)


async def test_a_limit_of_the_agent_leaves_the_queue(store: MemoryCheckpointer) -> None:
    office = Office(store)
    agent = Agent(ScriptedModel([call("send")] * 5), name="clerk", tools=[office.send], checkpointer=store, max_turns=2)
    await enqueue(store, "t", "Send.", agent="clerk")
    await office.worker(agent).run(until_empty=True)
    assert (await status_of(store), office.endings()) == ("interrupted", ["interrupted"])


async def test_files_come_along_from_machine_to_machine_and_back(store: MemoryCheckpointer, tmp_path: Path) -> None:
    @tool
    async def note(text: str, ctx: ToolContext) -> str:
        assert ctx.workspace is not None
        with (ctx.workspace / "notes").open("a") as file:
            file.write(text)
        return (ctx.workspace / "notes").read_text()

    def agent(machine: str) -> Agent:
        def script(request: ModelRequest) -> Response:
            last = request.messages[-1]
            return call("note", text=plain_text(last)) if last.__class__.__name__ == "User" else "Noted."

        folders = tmp_path / machine
        return Agent(
            ScriptedModel(script), name="clerk", tools=[note], checkpointer=store, workspace=lambda name: folders / name
        )

    for number, machine in enumerate(["a", "b", "a"]):
        await enqueue(store, "t", str(number), agent="clerk")
        await Worker(agent(machine), store=store, poll=0.01).run(until_empty=True)
    assert (tmp_path / "a" / "t" / "notes").read_text() == "012"


async def test_a_post_that_the_run_before_did_not_see_is_not_forgotten(store: MemoryCheckpointer) -> None:
    office = Office(store)
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Go.")))
        await enqueue(store, "t", "Send.", agent="clerk")
    running = asyncio.create_task((worker := office.worker()).run())
    await until(lambda: office.endings() == ["done"])
    worker.drain()
    await running
    assert len(office.sent) == 2
    assert not [head async for head in store.heads(HeadQuery(order="due")) if is_inbox(head)]


async def test_a_worker_outlives_a_store_that_is_away(store: MemoryCheckpointer, clock: Clock) -> None:
    office = Office(store)
    await enqueue(store, "t", "Send.", agent="clerk")
    away = Away(store)
    worker = Worker(office.agent(), store=away, poll=0.01, on_event=office.events.append)
    running = asyncio.create_task(worker.run())
    await until(lambda: away.refused > 3)
    away.is_away = False
    while office.endings() != ["done"]:
        clock.advance(1)
        await asyncio.sleep(0.005)
    worker.drain()
    await running


class Away(MemoryCheckpointer):
    """A store that does not answer to listings for a while."""

    def __init__(self, store: MemoryCheckpointer) -> None:
        super().__init__()
        self.__dict__.update(store.__dict__)
        self.is_away = True
        self.refused = 0

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Any]:
        if self.is_away:
            self.refused += 1
            raise Unavailable("the store is away")
        async for head in super().heads(query):
            yield head


async def test_a_worker_says_what_is_wrong_with_its_arguments(store: MemoryCheckpointer) -> None:
    agent = Office(store).agent()
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "at least one agent"),
        (["clerk"], {}, "'clerk' is none"),
        (agent, {"concurrency": 0}, "concurrency is a whole number"),
        (agent, {"limits": {"customer": 2}}, "'customer' is no limit"),
        (agent, {"limits": {"tenant": 0}}, "the limit tenant is a number"),
        (agent, {"poll": 0}, "poll is a number of seconds"),
        (agent, {"timeout": -1}, "timeout is a number of seconds"),
    ]
    for agents, options, message in wrong:
        with pytest.raises(InvalidInput, match=message):
            Worker(agents, store=store, **options)
    with pytest.raises(UsageError, match="two agents are called 'clerk'"):
        Worker([agent, agent], store=store)
    with pytest.raises(InvalidInput, match="most is the number of tries"):
        Retries(most=0)


async def test_a_thread_that_a_limit_keeps_back_is_taken_soon_even_if_the_worker_seldom_looks(
    store: MemoryCheckpointer,
) -> None:
    """Nobody tells a worker that a slot, which another worker held, is free again."""
    office = Office(store)
    office.go_on.clear()
    one = Worker([office.agent()], store=store, poll=0.01, limits={"agent:clerk": 1})
    other = Worker(
        [office.agent()], store=store, poll=10 * PATIENCE, limits={"agent:clerk": 1}, on_event=office.events.append
    )
    await enqueue(store, "a", "Send.", agent="clerk")
    first = asyncio.create_task(one.run())
    await asyncio.wait_for(office.begun.wait(), PATIENCE)
    second = asyncio.create_task(other.run())
    await enqueue(store, "b", "Send.", agent="clerk")
    await until(lambda: other.counts.limits_reached)
    one.drain()
    office.go_on.set()
    await first
    await until(lambda: "done" in office.endings())
    other.drain()
    await second
