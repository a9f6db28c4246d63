"""What a stop at an awkward moment must not lose, repeat or mix up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from clew import Thread
from clew._runtime.aio import settle
from clew.agent import Agent, ToolFinished, ToolInDoubt
from clew.agent import journal as journals
from clew.checkpointers import Head, MemoryCheckpointer
from clew.errors import Unavailable, UsageError
from clew.log import MessageAdded, ToolIntent
from clew.messages import ToolCall, assistant, plain_text, user
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.tools import NOT_DONE, NotDone, ToolContext, tool
from clew.workspace import Workspace
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


@tool(effect="none")
async def look() -> str:
    return "row"


class Away(MemoryCheckpointer):
    """A store that is away for so many appends, from one on."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = 0
        self.away: range = range(0)

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self.appends += 1
        if self.appends in self.away:
            raise Unavailable("the store is away")
        await super().append(thread_id, frames, at=at, head=head, refs=refs)


async def test_a_prompt_is_on_record_before_the_files_are_looked_at(
    store: MemoryCheckpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    agent = Agent(ScriptedModel(["One.", "Two."]), checkpointer=store, workspace=tmp_path / "w")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_text("a")
    await agent.run("First.", thread_id="t")

    async def never(*_: Any) -> None:
        clock.advance(600)
        await asyncio.Event().wait()

    with monkeypatch.context() as slow:
        slow.setattr(Workspace, "snapshot", never)
        stopped = await agent.run("Second.", thread_id="t", timeout=600)
    assert stopped.status == "interrupted"
    assert (await agent.resume(thread_id="t")).output == "Two."


async def test_the_prompt_of_work_that_is_done_is_asked_again_though_somebody_had_the_thread_open_since(
    store: MemoryCheckpointer,
) -> None:
    agent = Agent(ScriptedModel(["One.", "Two."]), checkpointer=store)
    await agent.run("Go on.", thread_id="t")
    async with Thread.open(store, "t"):
        pass
    assert (await agent.run("Go on.", thread_id="t")).output == "Two."


async def test_a_prompt_that_comes_while_calls_are_open_waits_on_record(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    @tool(effect="idempotent")
    async def slow() -> str:
        if slow_first.pop():
            clock.advance(600)
            await asyncio.Event().wait()
        return "ok"

    slow_first = [False, True, True]
    script: list[Response] = [call("slow"), "Stopped, as you said."]
    agent = Agent(ScriptedModel(script), tools=[slow], checkpointer=store)
    await agent.run("Order it.", thread_id="t", timeout=600)
    assert (await agent.resume("Stop.", thread_id="t", timeout=600)).status == "interrupted"
    assert (await agent.resume(thread_id="t")).output == "Stopped, as you said."
    words = [plain_text(message) for message in (await Thread.load(store, "t")).messages if plain_text(message)]
    assert words == ["Order it.", "Stop.", "Stopped, as you said."]


async def test_a_thread_rewound_to_its_start_takes_the_same_prompt_again(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(lambda request: f"Seen {len(request.messages)}."), checkpointer=store)
    await agent.run("Go.", thread_id="t")
    async with Thread.open(store, "t") as thread:
        await thread.rewind(0)
    assert (await agent.run("Go.", thread_id="t")).output == "Seen 1."


async def test_an_answer_given_again_after_a_stop_is_no_mistake(store: MemoryCheckpointer) -> None:
    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    def agent(*script: Response) -> Agent:
        return Agent(ScriptedModel(list(script)), tools=[pay], checkpointer=store)

    await agent(call("pay")).run("Go.", thread_id="t")
    with pytest.raises(RuntimeError):
        await agent(call("pay"), RuntimeError("down")).resume(thread_id="t", answer=True)
    assert (await agent(call("pay"), "Paid.").resume(thread_id="t", answer=True)).output == "Paid."
    with pytest.raises(UsageError, match="does not wait for an answer"):
        await agent(call("pay"), "Paid.").resume(thread_id="t", answer="something else")


async def test_a_call_in_doubt_whose_tool_is_gone_is_told_as_such(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Go.")), MessageAdded(assistant(ToolCall("c", "pay", {}))))
        await thread.append(ToolIntent(1, 0, "k"))
    model = ScriptedModel([call("pay"), "I will look."])
    events = [event async for event in Agent(model, tools=[look], checkpointer=store).run("Go.", thread_id="t")]
    assert [event.becomes for event in events if isinstance(event, ToolInDoubt)] == ["told to the model"]
    assert "not known whether pay took effect" in str(model.requests[-1].messages[-1])


async def test_a_person_who_says_what_a_call_came_to_is_heard_whatever_its_effect(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    ran: list[int] = []

    @tool(effect="idempotent", in_doubt="ask", timeout=600)
    def pay() -> str:
        ran.append(1)
        began.set()
        given_up.wait(PATIENCE)
        return "paid"

    began, given_up = threading.Event(), threading.Event()
    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store)
    waiting, _ = await asyncio.gather(agent.run("Go.", thread_id="t"), clock.advance_when(began.is_set, 600))
    assert waiting.questions[0].kind == "in doubt"
    given_up.set()
    result = await agent.resume(thread_id="t", answer="it was paid")
    assert (result.output, len(ran)) == ("Done.", 1)


async def test_half_a_character_at_the_end_of_a_response_is_left_out_and_the_response_kept(
    store: MemoryCheckpointer,
) -> None:
    result = await Agent(ScriptedModel([assistant("Done \ud83d")]), checkpointer=store).run("Go.", thread_id="t")
    assert result.output == "Done ?"


async def test_a_step_in_doubt_is_reconciled_by_a_retry_in_the_same_process(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    charged: list[int] = []

    async def charge() -> str:
        charged.append(1)
        if len(charged) == 1:
            clock.advance(600)
            await asyncio.Event().wait()
        return "charged"

    def was_charged() -> str | NotDone:
        return "charged" if charged else NOT_DONE

    @tool(effect="steps", timeout=600, retries=1)
    async def pay(ctx: ToolContext) -> str:
        return await ctx.step("charge", charge, reconcile=was_charged)

    agent = Agent(ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=store)
    assert (await agent.run("Go.", thread_id="t")).output == "Done."
    assert len(charged) == 1


@pytest.mark.parametrize("first", range(2, 12))
async def test_a_store_that_is_away_for_a_moment_is_waited_for(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_FIRST_PAUSE", 0.001)
    ran: list[str] = []

    @tool
    async def charge(ctx: ToolContext) -> str:
        async def really() -> str:
            ran.append("charged")
            return "ok"

        return await ctx.step("charge", really)

    async with Away() as store:
        store.away = range(first, first + 2)
        agent = Agent(ScriptedModel([call("charge"), call("charge"), "Done."]), tools=[charge], checkpointer=store)
        events = [event async for event in agent.run("Go.", thread_id="t")]
        assert sum(isinstance(event, ToolFinished) for event in events) == 2
        head = await store.head("t")
        assert head is not None
        assert (head.status, head.lease, ran) == ("done", None, ["charged", "charged"])


async def test_a_store_that_stays_away_ends_the_run_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "PATIENCE", 0.01)
    ran: list[int] = []

    @tool
    async def charge() -> str:
        ran.append(1)
        return "ok"

    def agent() -> Agent:
        return Agent(ScriptedModel([call("charge"), "Done."]), tools=[charge], checkpointer=store, takeover=True)

    async with Away() as store:
        store.away = range(4, 1000)
        before = asyncio.all_tasks()
        with pytest.raises(Unavailable):
            await agent().run("Go.", thread_id="t")
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before
        store.away = range(0)
        assert (await agent().run("Go.", thread_id="t")).output == "Done."
        assert ran == [1], "a call whose intent could not be written never began"


class Silent(MemoryCheckpointer):
    """A store that says nothing from some append on: each takes ten seconds of the test's clock to be given up, whether
    its caller is cancelled or not."""

    def __init__(self, clock: Clock, after: int) -> None:
        super().__init__()
        self.clock = clock
        self.left = after
        self.is_silent = asyncio.Event()

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        self.left -= 1
        if self.left >= 0:
            await super().append(thread_id, frames, at=at, head=head, refs=refs)
            return
        self.is_silent.set()
        await settle(self._give_up())

    async def _give_up(self) -> None:
        for _ in range(10):  # what happens meanwhile, such as a cancellation, comes first
            await asyncio.sleep(0)
        self.clock.advance(10)
        raise Unavailable("no answer for 10 s")


async def test_a_run_gives_up_a_silent_store_after_half_a_minute(clock: Clock) -> None:
    """It waits for one append, for a second try, and for the release of the lease: not for each waiting write."""
    async with Silent(clock, after=3) as store:
        agent = Agent(ScriptedModel([call("look"), "Done."]), tools=[look], checkpointer=store)
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await agent.run("Go.", thread_id="t")
        assert time.monotonic() - began < 30 + 9


@pytest.mark.parametrize("way", ["cancel", "timeout"])
async def test_a_stopped_run_gives_up_a_silent_store_after_two_calls(clock: Clock, way: str) -> None:
    """It waits for the append under way, and for the release of the lease."""
    async with Silent(clock, after=3) as store:
        agent = Agent(ScriptedModel([call("look"), "Done."]), tools=[look], checkpointer=store)
        run = asyncio.ensure_future(agent.run("Go.", thread_id="t", timeout=5 if way == "timeout" else None))
        await asyncio.wait_for(store.is_silent.wait(), PATIENCE)
        began = time.monotonic()
        if way == "cancel":
            run.cancel()
        await asyncio.wait([run], timeout=PATIENCE)
        assert run.cancelled() if way == "cancel" else isinstance(run.exception(), Unavailable)
        assert time.monotonic() - began < 20 + 9


async def test_a_cancelled_run_leaves_no_task_behind(store: MemoryCheckpointer) -> None:
    before = asyncio.all_tasks()
    for wait in range(1, 12):
        run = asyncio.ensure_future(
            Agent(ScriptedModel([call("look"), "Done."]), tools=[look], checkpointer=store).run("Go.")
        )
        for _ in range(wait):
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait([run])
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_response_that_was_paid_for_is_kept_though_the_run_is_stopped_while_a_snapshot_is_taken(
    store: MemoryCheckpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    snapshot = Workspace.snapshot

    async def slow(self: Workspace, *given: Any) -> Any:
        clock.advance(600)
        await asyncio.sleep(0.01)
        return await snapshot(self, *given)

    monkeypatch.setattr(Workspace, "snapshot", slow)
    asked: list[int] = []

    def script(request: ModelRequest) -> Response:
        asked.append(len(request.messages))
        return "Done." if len(request.messages) > 1 else call("look")

    agent = Agent(ScriptedModel(script), tools=[look], checkpointer=store, workspace=tmp_path / "w")
    assert (await agent.run("Go.", thread_id="t", timeout=600)).status == "interrupted"
    assert (await agent.resume(thread_id="t")).output == "Done."
    assert asked == [1, 3]


async def test_an_agent_that_is_closed_says_so() -> None:
    agent = Agent(ScriptedModel(["One.", "Two."]), checkpointer=None)
    async with agent:
        await agent.run("First.", thread_id="t")
    with pytest.raises(UsageError, match="closed"):
        await agent.run("Second.", thread_id="t")
