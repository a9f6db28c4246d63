"""What an agent promises: nothing recorded is bought twice, no effect happens twice unseen, every stop can be resumed."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from typing import Any

import pytest

from clew import Thread
from clew.agent import (
    Agent,
    Budget,
    CheckpointSaved,
    RunResult,
    ToolFinished,
    ToolInDoubt,
    ToolReplayed,
    ToolStarted,
    TurnFinished,
    Waiting,
)
from clew.agent.questions import record_answer
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput, ThreadBusy, UsageError
from clew.log import MessageAdded, ModelCallStarted, ToolIntent
from clew.messages import Text, ToolCall, ToolResult, assistant, plain_text, user
from clew.models import ModelRequest, Price
from clew.models.base import TextDelta
from clew.testing import Response, ScriptedModel, call
from clew.tools import NOT_DONE, NotDone, ToolContext, tool
from tests.clock import Clock

pytestmark = pytest.mark.anyio


class Bank:
    """A tool with an effect, and what really happened."""

    def __init__(self, **options: Any) -> None:
        self.charged: list[str] = []
        self.keys: list[str] = []

        @tool(**options)
        async def charge(order: str, ctx: ToolContext) -> str:
            self.charged.append(order)
            self.keys.append(ctx.idempotency_key)
            return f"charged {order}"

        self.charge = charge


async def left_in_doubt(store: MemoryCheckpointer, key: str = "key-1") -> None:
    """A thread whose process died inside the tool."""
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Go.")), ModelCallStarted())
        await thread.append(MessageAdded(assistant(ToolCall("call_1_1", "charge", {"order": "7"}))))
        await thread.append(ToolIntent(1, 0, key, 1))


SCRIPT: list[Response] = [call("charge", order="7"), "Done."]


async def test_a_run_calls_tools_until_the_model_has_the_last_word(store: MemoryCheckpointer) -> None:
    bank = Bank()
    model = ScriptedModel([call("charge", order="1") + call("charge", order="2"), "Both are charged."])
    agent = Agent(model, tools=[bank.charge], checkpointer=store)
    result = await agent.run("Charge them.", thread_id="t")
    assert (result.output, result.status, result.turns) == ("Both are charged.", "done", 2)
    assert bank.charged == ["1", "2"]
    head = await store.head("t")
    assert head is not None
    assert (head.status, head.turns, head.lease) == ("done", 2, None)


async def test_events_tell_what_happens_in_order(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(SCRIPT), tools=[Bank().charge], checkpointer=store)
    run = agent.run("Go.", thread_id="t")
    events = [event async for event in run if not isinstance(event, TextDelta)]
    assert [type(event).__name__ for event in events if not isinstance(event, CheckpointSaved)] == [
        "RunStarted",
        "TurnStarted",
        "ToolStarted",
        "ToolFinished",
        "TurnFinished",
        "TurnStarted",
        "TurnFinished",
    ]
    assert [event.turn for event in events if isinstance(event, CheckpointSaved)] == [1, 2]
    assert (await run).output == "Done."


async def test_a_run_is_lazy_and_runs_once(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(["Hi."]), checkpointer=store)
    run = agent.run("Go.", thread_id="t")
    assert await store.head("t") is None
    result = await run
    assert await run is result
    head = await store.head("t")
    assert head is not None
    assert head.turns == 1


async def test_a_second_prompt_goes_on_with_the_conversation(store: MemoryCheckpointer) -> None:
    model = ScriptedModel(["One.", "Two.", "Two again."])
    agent = Agent(model, checkpointer=store)
    await agent.run("First.", thread_id="t")
    assert (await agent.run("Second.", thread_id="t")).output == "Two."
    assert (await agent.run("Second.", thread_id="t")).output == "Two again.", "a finished question may be asked again"
    assert [plain_text(message) for message in model.requests[-1].messages] == [
        "First.", "One.", "Second.", "Two.", "Second."
    ]  # fmt: skip


async def test_a_call_that_finished_before_the_crash_is_not_run_again(store: MemoryCheckpointer) -> None:
    bank = Bank()
    async with Thread.open(store, "t") as thread:
        calls = [ToolCall(f"call_1_{n}", "charge", {"order": str(n)}) for n in (1, 2)]
        await thread.append(MessageAdded(user("Go.")), MessageAdded(assistant(*calls)))
        await thread.append(ToolIntent(1, 0, "k"))
    agent = Agent(ScriptedModel([call("charge", order="1"), "Done."]), tools=[bank.charge], checkpointer=store)
    events = [event async for event in agent.run("Go.", thread_id="t")]
    doubts = [event for event in events if isinstance(event, ToolInDoubt)]
    assert [(event.call_id, event.becomes) for event in doubts] == [("call_1_1", "told to the model")]
    assert bank.charged == ["2"], "the one in doubt is not run, the one that was not started is"
    assert not any(isinstance(event, ToolReplayed) for event in events)


@pytest.mark.parametrize("effect", ["none", "idempotent"])
async def test_what_may_run_again_runs_again_with_the_same_key(store: MemoryCheckpointer, effect: str) -> None:
    bank = Bank(effect=effect)
    await left_in_doubt(store)
    agent = Agent(ScriptedModel(SCRIPT), tools=[bank.charge], checkpointer=store)
    result = await agent.run("Go.", thread_id="t")
    assert (result.output, bank.charged, bank.keys) == ("Done.", ["7"], ["key-1"])
    assert result.resumed_from == 1


async def test_a_once_tool_in_doubt_is_told_to_the_model_and_not_run(store: MemoryCheckpointer) -> None:
    bank = Bank()
    await left_in_doubt(store)
    model = ScriptedModel(SCRIPT)
    await Agent(model, tools=[bank.charge], checkpointer=store).run("Go.", thread_id="t")
    assert bank.charged == []
    assert "not known whether charge took effect" in str(model.requests[-1].messages[-1])


@pytest.mark.parametrize("happened", [True, False])
async def test_reconcile_decides_what_is_in_doubt(store: MemoryCheckpointer, happened: bool) -> None:
    def reconcile(ctx: ToolContext, order: str) -> str | NotDone:
        return f"was charged {order} {ctx.idempotency_key}" if happened else NOT_DONE

    bank = Bank(reconcile=reconcile)
    await left_in_doubt(store)
    model = ScriptedModel(SCRIPT)
    await Agent(model, tools=[bank.charge], checkpointer=store).run("Go.", thread_id="t")
    assert bank.charged == ([] if happened else ["7"])
    assert ("was charged 7 key-1" if happened else "charged 7") in str(model.requests[-1].messages[-1])


@pytest.mark.parametrize(("answer", "charged"), [("run", ["7"]), ("it went through", [])])
async def test_a_person_is_asked_what_became_of_a_call_in_doubt(
    store: MemoryCheckpointer, answer: str, charged: list[str]
) -> None:
    bank = Bank(in_doubt="ask")
    await left_in_doubt(store)
    agent = Agent(ScriptedModel(SCRIPT), tools=[bank.charge], checkpointer=store)
    waiting = await agent.run("Go.", thread_id="t")
    assert (waiting.status, [question.kind for question in waiting.questions]) == ("waiting", ["in doubt"])
    assert bank.charged == []
    result = await agent.resume(thread_id="t", answer=answer)
    assert (result.output, bank.charged) == ("Done.", charged)


@pytest.mark.parametrize(("answer", "charged"), [(True, ["7"]), (False, []), ("too much", [])])
async def test_a_tool_that_needs_approval_waits_for_it(
    store: MemoryCheckpointer, answer: Any, charged: list[str]
) -> None:
    bank = Bank(approve=True)
    model = ScriptedModel(SCRIPT)
    waiting = await Agent(model, tools=[bank.charge], checkpointer=store).run("Go.", thread_id="t")
    assert (waiting.status, waiting.questions[0].arguments, bank.charged) == ("waiting", {"order": "7"}, [])
    head = await store.head("t")
    assert head is not None
    assert (head.status, head.lease) == ("waiting", None)
    another = Agent(model, tools=[bank.charge], checkpointer=store)
    result = await another.resume(thread_id="t", answer=answer)
    assert (result.output, bank.charged) == ("Done.", charged)
    if not charged:
        assert "did not allow" in str(model.requests[-1].messages[-1])


async def test_a_tool_that_asks_goes_on_with_the_answer_and_repeats_no_step(store: MemoryCheckpointer) -> None:
    done: list[str] = []

    @tool
    async def book(city: str, ctx: ToolContext) -> str:
        await ctx.step("reserve", lambda: done.append("reserved"))
        seat = await ctx.interrupt("Window or aisle?")
        return f"{city}, {seat}"

    agent = Agent(ScriptedModel([call("book", city="Rome"), "Booked."]), tools=[book], checkpointer=store)
    waiting = await agent.run("Go.", thread_id="t")
    assert waiting.questions[0].text == "Window or aisle?"
    result = await agent.resume(thread_id="t", answer="window")
    assert (result.output, done) == ("Booked.", ["reserved"])


async def test_an_answer_that_nobody_waits_for_is_refused(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel(["Hi."]), checkpointer=store)
    await agent.run("Go.", thread_id="t")
    with pytest.raises(UsageError, match="does not wait for an answer"):
        await agent.resume(thread_id="t", answer="yes")


async def test_max_turns_interrupts_and_more_turns_go_on(store: MemoryCheckpointer) -> None:
    bank = Bank()
    model = ScriptedModel([call("charge", order=str(n)) for n in range(3)] + ["Done."])
    agent = Agent(model, tools=[bank.charge], checkpointer=store, max_turns=2)
    stopped = await agent.run("Go.", thread_id="t")
    assert (stopped.status, stopped.reason, stopped.output) == ("interrupted", "max_turns: 2", None)
    result = await agent.resume(thread_id="t", max_turns=10)
    assert (result.status, bank.charged) == ("done", ["0", "1", "2"])
    assert list(result.drift) == ["limits"]


async def test_a_budget_stops_the_run_and_counts_what_was_spent_before(store: MemoryCheckpointer) -> None:
    bank = Bank()
    model = ScriptedModel([call("charge", order="1"), "Done."], name="example")
    prices = {"example": Price(1_000_000, 1_000_000)}
    agent = Agent(model, tools=[bank.charge], checkpointer=store, prices=prices, budget=Budget(usd=1.0))
    stopped = await agent.run("Go.", thread_id="t")
    assert stopped.reason.startswith("budget: ")
    assert stopped.cost is not None
    again = await agent.run("Go.", thread_id="t")
    assert (again.status, again.cost) == ("interrupted", 0.0), "this run bought nothing"
    assert (await Thread.load(store, "t")).cost_usd == stopped.cost


async def test_a_budget_in_dollars_is_refused_where_no_price_is_known() -> None:
    with pytest.raises(InvalidInput, match="is not known"):
        Agent(ScriptedModel(["Hi."]), budget=Budget(usd=1.0))


async def test_what_changed_since_is_reported(store: MemoryCheckpointer) -> None:
    await Agent(ScriptedModel(["One.", "Two."]), checkpointer=store).run("First.", thread_id="t")
    other = Agent(ScriptedModel(["One.", "Two."], name="other"), tools=[Bank().charge], checkpointer=store)
    result = await other.run("Second.", thread_id="t")
    assert result.drift["model"] == ("scripted", "other")
    assert result.drift["tools"] == ([], ["charge"])


async def test_tools_that_changed_and_kept_their_names_are_named_and_no_others_are(store: MemoryCheckpointer) -> None:
    def agent(*options: dict[str, Any]) -> Agent:
        banks = [Bank(**given).charge for given in options]
        return Agent(ScriptedModel(["One.", "Two.", "Three."]), tools=banks, checkpointer=store)

    await agent({"name": "pay"}, {"name": "refund"}).run("First.", thread_id="t")
    same = await agent({"name": "refund"}, {"name": "pay"}).run("Second.", thread_id="t")
    assert same.drift == {}, "the order in which tools are given is no difference"
    other = await agent({"name": "pay", "effect": "idempotent"}, {"name": "refund"}).run("Third.", thread_id="t")
    assert other.drift == {"changed tools": (["pay"], ["pay"])}


async def test_redacted_settings_are_no_drift(store: MemoryCheckpointer) -> None:
    def agent() -> Agent:
        told = "The key is k-123."
        model = ScriptedModel(["One.", "Two."])
        return Agent(
            model, system_prompt=told, tools=[Bank().charge], checkpointer=store, redact=[r"k-\d+", "[0-9a-f]{6}"]
        )

    await agent().run("First.", thread_id="t")
    assert (await agent().run("Second.", thread_id="t")).drift == {}


async def test_the_tool_uses_of_a_resumed_run_are_those_that_it_settled(store: MemoryCheckpointer) -> None:
    down = True

    @tool(effect="idempotent")
    async def work(part: str) -> str:
        if part == "b" and down:
            await asyncio.sleep(60)
        return f"{part} is done"

    model = ScriptedModel([[call("work", part="a"), call("work", part="b")], call("work", part="c"), "Done."])
    agent = Agent(model, tools=[work], checkpointer=store)
    run = agent.run("Go.", thread_id="t")
    async for event in run:
        if isinstance(event, ToolFinished):
            break
    await run.aclose()
    down = False
    result = await agent.run("Go.", thread_id="t")
    used = [(use.arguments["part"], use.output) for use in result.tool_uses]
    assert used == [("b", "b is done"), ("c", "c is done")]


def test_calls_with_the_same_id_have_each_their_own_result() -> None:
    blocks = [
        block
        for part in ("a", "b")
        for block in (ToolCall("call_0", "work", {"part": part}), ToolResult("call_0", (Text(f"{part} is done"),)))
    ]
    result = RunResult(thread_id="t", status="done", blocks=tuple(blocks))
    assert [use.output for use in result.tool_uses] == ["a is done", "b is done"]


async def test_the_errors_of_tools_are_answers_to_the_model(store: MemoryCheckpointer) -> None:
    @tool
    async def fails() -> str:
        raise ValueError("no such order")

    script: list[Response] = [call("fails"), call("charge"), call("nothing"), "Done."]
    model = ScriptedModel(script)
    result = await Agent(model, tools=[fails, Bank().charge], checkpointer=store).run("Go.", thread_id="t")
    assert result.output == "Done."
    answers = [str(message) for message in model.requests[-1].messages if message.__class__.__name__ == "Tool"]
    for words, answer in zip(["no such order", "order", "There is no tool 'nothing'"], answers, strict=True):
        assert words in answer


async def test_a_failure_of_the_model_is_on_record_and_raised_and_the_run_goes_on_later(
    store: MemoryCheckpointer,
) -> None:
    bank = Bank()
    failing = Agent(
        ScriptedModel([call("charge", order="7"), RuntimeError("down")]), tools=[bank.charge], checkpointer=store
    )
    with pytest.raises(RuntimeError, match="down"):
        await failing.run("Go.", thread_id="t")
    state = await Thread.load(store, "t")
    assert (state.status, state.reason) == ("failed", "RuntimeError: down")
    result = await Agent(ScriptedModel(SCRIPT), tools=[bank.charge], checkpointer=store).run("Go.", thread_id="t")
    assert (result.output, bank.charged) == ("Done.", ["7"])


async def test_the_reason_of_a_failed_run_is_the_error_in_its_own_words(store: MemoryCheckpointer) -> None:
    noted = InvalidInput("the model takes no pictures. Send text.")
    noted.add_note("what a caller is told beside it")
    for error, reason in ((noted, str(noted)), (ValueError("no"), "ValueError: no"), (ValueError(), "ValueError")):
        with pytest.raises(type(error)):
            await Agent(ScriptedModel([error]), checkpointer=store).run("Go.", thread_id=reason)
        assert (await Thread.load(store, reason)).reason == reason


async def test_a_cancelled_run_records_that_and_gives_its_lease_back(store: MemoryCheckpointer) -> None:
    started = asyncio.Event()

    @tool(effect="idempotent")
    async def slow() -> str:
        started.set()
        await asyncio.sleep(30)
        return "never"

    agent = Agent(ScriptedModel([call("slow"), "Done."]), tools=[slow], checkpointer=store)
    running = asyncio.ensure_future(_awaited(agent, "Go."))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    head = await store.head("t")
    assert head is not None
    assert (head.status, head.lease) == ("interrupted", None)
    assert [entry.status for entry in (await Thread.load(store, "t")).calls] == ["in_doubt"]


async def _awaited(agent: Agent, prompt: str) -> RunResult:
    return await agent.run(prompt, thread_id="t")


async def test_a_run_that_is_dropped_stops_and_the_next_one_waits_for_that(store: MemoryCheckpointer) -> None:
    bank = Bank()
    agent = Agent(
        ScriptedModel([call("charge", order="1"), "Done."], delay=0.05), tools=[bank.charge], checkpointer=store
    )
    run = agent.run("Go.", thread_id="t")
    await anext(run)
    del run
    gc.collect()
    result = await agent.run("Go.", thread_id="t")
    assert (result.output, bank.charged) == ("Done.", ["1"])


async def test_a_run_that_failed_and_its_agent_are_forgotten(store: MemoryCheckpointer) -> None:
    async def fail() -> weakref.ref[Agent]:
        agent = Agent(ScriptedModel([]), checkpointer=store)
        with pytest.raises(UsageError, match="no response"):
            await agent.run("Go.")
        return weakref.ref(agent)

    left = await fail()
    for _ in range(10):  # what the event loop has still to do holds the agent
        await asyncio.sleep(0)
    gc.collect()
    assert left() is None


async def test_a_stream_that_is_left_half_way_is_interrupted_on_record_and_has_no_result(
    store: MemoryCheckpointer,
) -> None:
    agent = Agent(ScriptedModel([call("charge", order="1"), "Done."]), tools=[Bank().charge], checkpointer=store)
    run = agent.stream("Go.", thread_id="t")
    with pytest.raises(UsageError, match="has not begun"):
        _ = run.result
    async for _event in run:
        break
    with pytest.raises(UsageError, match="has not finished"):
        _ = run.result
    await run.aclose()
    with pytest.raises(UsageError, match="stopped before its end"):
        _ = run.result
    head = await store.head("t")
    assert head is not None
    assert (head.status, head.lease) == ("interrupted", None)


async def test_a_stream_that_is_read_half_way_and_then_awaited_goes_on_to_its_end(store: MemoryCheckpointer) -> None:
    agent = Agent(ScriptedModel([call("charge", order="1"), "Done."]), tools=[Bank().charge], checkpointer=store)
    run = agent.stream("Go.", thread_id="t")
    async for _event in run:
        break
    assert (await run).output == "Done."
    assert run.result is await run


async def test_two_agents_do_not_run_one_thread(store: MemoryCheckpointer) -> None:
    release = asyncio.Event()

    @tool
    async def hold() -> str:
        await release.wait()
        return "held"

    first = Agent(ScriptedModel([call("hold"), "Done."]), tools=[hold], checkpointer=store)
    run = first.run("Go.", thread_id="t")
    while not isinstance(await anext(run), ToolStarted):
        pass
    with pytest.raises(ThreadBusy):
        await Agent(ScriptedModel(["Hi."]), checkpointer=store).run("Go.", thread_id="t")
    release.set()
    assert (await run).output == "Done."


async def test_what_tools_keep_in_state_is_there_after_a_resume(store: MemoryCheckpointer) -> None:
    @tool
    async def count(ctx: ToolContext) -> str:
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        return str(ctx.state["n"])

    for expected, prompt in ((1, "First."), (2, "Second.")):
        script: Any = [call("count"), "One.", call("count"), "Two."]
        await Agent(ScriptedModel(script), tools=[count], checkpointer=store).run(prompt, thread_id="t")
        assert (await Thread.load(store, "t")).state == {"n": expected}


async def test_a_model_is_asked_with_the_whole_conversation_and_the_tools(store: MemoryCheckpointer) -> None:
    model = ScriptedModel(SCRIPT)
    agent = Agent(model, system_prompt="Be brief.", tools=[Bank().charge], checkpointer=store, max_tokens=100)
    events = [event async for event in agent.run("Go.", thread_id="t")]
    request: ModelRequest = model.requests[0]
    assert (request.system, request.max_tokens, [spec.name for spec in request.tools]) == ("Be brief.", 100, ["charge"])
    assert sum(isinstance(event, ToolFinished) for event in events) == 1
    assert sum(isinstance(event, TurnFinished) for event in events) == 2
    assert not any(isinstance(event, Waiting) for event in events)


async def test_with_durability_exit_a_tool_that_must_not_run_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must not run twice"):
        Agent(ScriptedModel(["Hi."]), tools=[Bank().charge], durability="exit")


async def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two tools"):
        Agent(ScriptedModel(["Hi."]), tools=[Bank().charge, Bank().charge])


async def test_an_answer_is_for_one_attempt_and_a_call_stopped_again_is_asked_about_again(
    store: MemoryCheckpointer,
) -> None:
    begun: list[int] = []

    class Killed(BaseException):
        pass

    @tool(in_doubt="ask")
    async def charge(order: str) -> str:
        begun.append(1)
        raise Killed

    await left_in_doubt(store)
    agent = Agent(ScriptedModel(SCRIPT), tools=[charge], checkpointer=store)
    assert (await agent.run("Go.", thread_id="t")).status == "waiting"
    with pytest.raises(Killed):
        await agent.resume(thread_id="t", answer="run")
    again = await agent.resume(thread_id="t")
    assert (again.status, len(begun)) == ("waiting", 1)


async def test_a_sync_tool_that_timed_out_is_asked_about_where_that_is_wished(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    began = threading.Event()

    @tool(in_doubt="ask", timeout=600)
    def charge(order: str, ctx: ToolContext) -> str:
        began.set()
        while not ctx.cancelled:
            time.sleep(0.005)
        return "late"

    agent = Agent(ScriptedModel(SCRIPT), tools=[charge], checkpointer=store)
    waiting, _ = await asyncio.gather(agent.run("Go.", thread_id="t"), clock.advance_when(began.is_set, 600))
    assert [question.kind for question in waiting.questions] == ["in doubt"]
    assert (await agent.resume(thread_id="t", answer="it went through")).output == "Done."


async def test_several_questions_are_answered_by_their_ids(store: MemoryCheckpointer) -> None:
    bank = Bank(approve=True)
    script: list[Response] = [call("charge", order="1") + call("charge", order="2"), "Done."]
    agent = Agent(ScriptedModel(script), tools=[bank.charge], checkpointer=store)
    waiting = await agent.run("Go.", thread_id="t")
    first, second = (question.id for question in waiting.questions)
    assert [question.id for question in await agent.questions("t")] == [first, second]
    with pytest.raises(InvalidInput, match="several answers"):
        await agent.resume(thread_id="t", answer=True)
    with pytest.raises(InvalidInput, match="cannot be stored"):
        await agent.resume(thread_id="t", answer={first: object()})
    assert (await Thread.load(store, "t")).status == "waiting", "a mistake changes nothing"
    assert (await agent.resume(thread_id="t", answer={second: True})).status == "waiting"
    with pytest.raises(InvalidInput, match="any more"):
        await agent.resume(thread_id="t", answer={second: False})
    result = await agent.resume(thread_id="t", answer={first: False})
    assert (result.output, bank.charged) == ("Done.", ["2"])


async def test_a_question_can_be_answered_whatever_is_redacted(store: MemoryCheckpointer) -> None:
    @tool(approve=True)
    async def pay(card: int) -> str:
        return "paid"

    script: list[Response] = [call("pay", card=4111111111111111), "Done."]
    agent = Agent(ScriptedModel(script), tools=[pay], checkpointer=store, redact=[r"\b\d{16}\b"])
    await agent.run("Go.", thread_id="t")
    assert (await agent.resume(thread_id="t", answer=True)).output == "Done."


async def test_a_budget_in_dollars_stops_where_the_cost_is_not_known_any_more(store: MemoryCheckpointer) -> None:
    await Agent(ScriptedModel(["One.", "Two."]), checkpointer=store).run("First.", thread_id="t")
    known = Agent(
        ScriptedModel(["One.", "Two."], name="example"),
        checkpointer=store,
        prices={"example": Price(1, 1)},
        budget=Budget(usd=5.0),
    )
    result = await known.run("Second.", thread_id="t")
    assert (result.status, "not known" in result.reason) == ("interrupted", True)


async def test_a_state_that_cannot_be_kept_does_not_undo_what_was_done(store: MemoryCheckpointer) -> None:
    @tool
    async def charge(order: str, ctx: ToolContext) -> str:
        ctx.state["list"] = []
        ctx.state["list"].append(object())
        return "charged"

    model = ScriptedModel(SCRIPT)
    result = await Agent(model, tools=[charge], checkpointer=store).run("Go.", thread_id="t")
    assert (result.output, "charged" in str(model.requests[-1].messages[-1])) == ("Done.", True)


async def test_closing_an_agent_stops_what_still_runs_and_gives_its_lease_back(store: MemoryCheckpointer) -> None:
    @tool(effect="idempotent")
    async def slow() -> None:
        await asyncio.sleep(30)

    async with Agent(ScriptedModel([call("slow"), "Done."]), tools=[slow], checkpointer=store) as agent:
        run = agent.run("Go.", thread_id="t")
        while not isinstance(await anext(run), ToolStarted):
            pass
    head = await store.head("t")
    assert head is not None
    assert (head.status, head.lease) == ("interrupted", None)
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_model_that_pauses_is_asked_to_go_on(store: MemoryCheckpointer) -> None:
    script: list[Response] = [assistant("Let me see.", stop="pause_turn"), "Done."]
    result = await Agent(ScriptedModel(script), checkpointer=store).run("Go.", thread_id="t")
    assert (result.output, result.turns) == ("Done.", 2)


async def test_a_call_that_waits_for_approval_is_not_run_by_a_fork_without_one(store: MemoryCheckpointer) -> None:
    ran: list[int] = []

    @tool(approve=True, effect="idempotent")
    async def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    def agent() -> Agent:
        return Agent(ScriptedModel([call("pay", amount=9), "Paid."]), tools=[pay], checkpointer=store)

    await agent().run("Pay.", thread_id="t")
    async with Thread.open(store, "t") as thread:
        await thread.fork("fork")
    asked = await agent().resume(thread_id="fork")
    assert (asked.status, [question.kind for question in asked.questions], ran) == ("waiting", ["approval"], [])
    assert (await agent().resume(thread_id="fork", answer=True)).output == "Paid."
    assert ran == [9]


async def test_an_approved_call_that_was_stopped_is_run_again_without_another_question(
    store: MemoryCheckpointer,
) -> None:
    ran: list[int] = []

    @tool(approve=True, effect="idempotent")
    async def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    def agent() -> Agent:
        return Agent(ScriptedModel([call("pay", amount=9), "Paid."]), tools=[pay], checkpointer=store)

    await agent().run("Pay.", thread_id="t")
    await record_answer(store, "t", True)
    async with Thread.open(store, "t") as thread:
        await thread.append(ToolIntent(1, 0, "key", 1))
    assert (await agent().resume(thread_id="t")).output == "Paid."
    assert ran == [9]
