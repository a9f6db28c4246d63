"""Runs of the agent with Locus' names: their events, and what becomes of those that nobody reads."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from clew import Thread
from clew.compat.locus import (
    Agent,
    InterruptEvent,
    LocusEvent,
    TerminateEvent,
    ThinkEvent,
    ToolCompleteEvent,
    ToolContext,
    ToolStartEvent,
    tool,
)
from clew.compat.locus.memory.backends import MemoryCheckpointer
from clew.errors import InvalidInput, ModelError, UsageError
from clew.log import Usage
from clew.messages import plain_text
from clew.testing import Response, ScriptedModel, call, say
from tests.clock import Clock

pytestmark = pytest.mark.anyio


@tool
async def weather(city: str) -> str:
    """Tell the weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city")
    return f"{city}: 18 degrees"


def an_agent(script: Sequence[Response], checkpointer: Any = None, **settings: Any) -> Agent:
    return Agent(model=ScriptedModel(script), tools=[weather], checkpointer=checkpointer, **settings)


async def events_of(agent: Agent, prompt: str, thread_id: str = "t") -> list[LocusEvent]:
    return [event async for event in agent.run(prompt, thread_id=thread_id)]


async def test_the_events_of_a_run_come_in_the_order_of_locus() -> None:
    script: list[Response] = [
        say("Let me look.") + call("weather", city="Paris") + call("weather", city="Atlantis"),
        "Mild.",
    ]
    think, *tools, last, end = await events_of(an_agent(script), "How is it there?")
    assert isinstance(think, ThinkEvent)
    assert (think.event_type, think.iteration, think.reasoning) == ("think", 1, "Let me look.")
    assert [made.arguments for made in think.tool_calls] == [{"city": "Paris"}, {"city": "Atlantis"}]
    started = [event for event in tools if isinstance(event, ToolStartEvent)]
    assert [event.tool_call_id for event in started] == [made.id for made in think.tool_calls]
    done = {event.tool_call_id: event for event in tools if isinstance(event, ToolCompleteEvent)}
    good, bad = (done[made.id] for made in think.tool_calls)
    assert (good.result, good.error, good.success) == ("Paris: 18 degrees", None, True)
    assert (bad.result, bad.success) == (None, False)
    assert "no such city" in (bad.error or "")
    assert good.duration_ms is not None
    assert isinstance(last, ThinkEvent)
    assert (last.iteration, last.reasoning, last.tool_calls) == (2, "Mild.", [])
    assert isinstance(end, TerminateEvent)
    assert (end.reason, end.iterations_used, end.total_tool_calls, end.final_message) == ("complete", 2, 2, "Mild.")


async def test_events_come_while_the_run_goes_on() -> None:
    may_end = asyncio.Event()

    @tool
    async def wait() -> str:
        await may_end.wait()
        return "waited"

    agent = Agent(model=ScriptedModel([call("wait"), "Done."]), tools=[wait])
    seen = []
    async for event in agent.run("Wait.", thread_id="t"):
        seen.append(type(event))
        if isinstance(event, ToolStartEvent):
            may_end.set()
    assert seen == [ThinkEvent, ToolStartEvent, ToolCompleteEvent, ThinkEvent, TerminateEvent]


async def test_a_loop_that_is_left_early_does_not_stop_the_run() -> None:
    checkpointer = MemoryCheckpointer()
    agent = an_agent([call("weather", city="Paris"), "Mild.", "Yes."], checkpointer)
    async for _ in agent.run("How is it in Paris?", thread_id="t"):
        break
    gc.collect()
    del agent
    other = an_agent([call("weather", city="Paris"), "Mild.", "Yes."], checkpointer)
    await events_of(other, "Sure?")  # waits for the first run
    state = await Thread.load(checkpointer.store, "t")
    assert [plain_text(message) for message in state.messages] == [
        "How is it in Paris?",
        "",
        "",
        "Mild.",
        "Sure?",
        "Yes.",
    ]


async def test_runs_on_one_thread_come_one_after_the_other() -> None:
    checkpointer = MemoryCheckpointer()
    runs = [an_agent(["One.", "Two.", "Three."], checkpointer).run(f"{n}?", thread_id="t") for n in "123"]
    await asyncio.gather(*(anext(run) for run in runs))
    await checkpointer.close()
    # the store is closed only once all of them have ended
    assert [[event async for event in run][-1].event_type for run in runs] == ["terminate"] * 3


async def test_closing_a_run_stops_it_and_a_later_one_goes_on() -> None:
    checkpointer, begun = MemoryCheckpointer(), asyncio.Event()
    slow = True

    @tool(effect="none")
    async def look() -> str:
        begun.set()
        if slow:
            await asyncio.Event().wait()
        return "seen"

    agent = Agent(model=ScriptedModel([call("look"), "Done."]), tools=[look], checkpointer=checkpointer)
    run = agent.run("Look.", thread_id="t")
    await anext(run)
    await begun.wait()
    await run.aclose()
    assert (await Thread.load(checkpointer.store, "t")).status == "interrupted"
    with pytest.raises(UsageError, match="was stopped"):
        [event async for event in run]
    slow = False
    *_, end = await events_of(agent, "Look.")
    assert isinstance(end, TerminateEvent)
    assert end.final_message == "Done."


async def test_a_run_is_stopped_when_its_reader_is_cancelled() -> None:
    checkpointer, begun = MemoryCheckpointer(), asyncio.Event()

    @tool(effect="none")
    async def look() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent(model=ScriptedModel([call("look")]), tools=[look], checkpointer=checkpointer)

    async def ask() -> None:
        await agent.run("Look.", thread_id="t").__anext__()

    reader = asyncio.create_task(ask())
    await begun.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (await Thread.load(checkpointer.store, "t")).status == "interrupted"


async def test_a_run_that_fails_says_so_and_raises() -> None:
    refused = ModelError("scripted", "no capacity")
    agent = an_agent([refused])
    run = agent.run("Hello.", thread_id="t")
    end = await anext(run)
    with pytest.raises(ModelError, match="no capacity"):
        await anext(run)
    assert isinstance(end, TerminateEvent)
    assert (end.reason, "no capacity" in (end.error or "")) == ("error", True)
    with pytest.raises(ModelError, match="no capacity"):
        await an_agent([call("weather", city="Paris"), refused]).run("Hello.", thread_id="t").__anext__()


async def test_a_failure_that_nobody_reads_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    checkpointer = MemoryCheckpointer()
    agent = an_agent([call("weather", city="Paris"), ModelError("scripted", "no capacity")], checkpointer)
    with caplog.at_level(logging.ERROR, "clew.compat.locus"):
        async for _ in agent.run("Hello.", thread_id="t"):
            break
        await agent.aclose()
    assert "no capacity" in caplog.text


async def test_a_run_that_is_never_asked_for_an_event_does_nothing() -> None:
    checkpointer = MemoryCheckpointer()
    with pytest.warns(RuntimeWarning, match="dropped unused"):
        an_agent(["Hi."], checkpointer).run("Hello.", thread_id="t")
    assert await checkpointer.list_threads() == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"max_iterations": 1}, "max_iterations"), ({"token_budget": 1}, "token_budget")],
)
async def test_limits_end_a_run_by_their_names(settings: dict[str, Any], reason: str) -> None:
    *_, end = await events_of(an_agent([call("weather", city="Paris"), "Mild."], **settings), "How is it?")
    assert isinstance(end, TerminateEvent)
    assert (end.reason, end.final_message) == (reason, None)


async def test_a_run_that_takes_too_long_is_interrupted_and_a_later_one_goes_on(clock: Clock) -> None:
    slow = True

    @tool(effect="none")
    async def look() -> str:
        if slow:
            clock.advance(600)
            await asyncio.Event().wait()
        return "seen"

    settings: dict[str, Any] = {"tools": [look], "checkpointer": MemoryCheckpointer()}
    *_, end = await events_of(Agent(model=ScriptedModel([call("look")]), time_budget_seconds=600, **settings), "Look.")
    assert isinstance(end, TerminateEvent)
    assert (end.reason, end.final_message) == ("time_budget", None)
    slow = False
    *_, end = await events_of(Agent(model=ScriptedModel([call("look"), "Done."]), **settings), "Look.")
    assert isinstance(end, TerminateEvent)
    assert end.final_message == "Done."


async def test_a_question_of_a_tool_is_an_interrupt_and_resume_answers_it() -> None:
    @tool
    async def ask(ctx: ToolContext) -> str:
        return f"They said {await ctx.interrupt('Window or aisle?')}."

    checkpointer = MemoryCheckpointer()

    def agent() -> Agent:
        return Agent(model=ScriptedModel([call("ask"), "Booked."]), tools=[ask], checkpointer=checkpointer)

    *_, asked = await events_of(agent(), "Book a seat.")
    assert isinstance(asked, InterruptEvent)
    assert asked.question == "Window or aisle?"
    *_, end = [event async for event in agent().resume("window", thread_id="t")]
    assert isinstance(end, TerminateEvent)
    assert end.final_message == "Booked."
    with pytest.raises(UsageError, match="asked nothing"):
        agent().resume("aisle")


async def test_metadata_of_a_run_is_what_tools_share() -> None:
    @tool(effect="none")
    async def who(ctx: ToolContext) -> str:
        return str(ctx.state["user"])

    checkpointer = MemoryCheckpointer()
    agent = Agent(model=ScriptedModel([call("who"), "Hello."]), tools=[who], checkpointer=checkpointer)
    seen = [event async for event in agent.run("Who am I?", thread_id="t", metadata={"user": "Alex"})]
    assert [event.result for event in seen if isinstance(event, ToolCompleteEvent)] == ["Alex"]
    state = await checkpointer.load("t")
    assert state is not None
    assert state.metadata == {"user": "Alex"}
    with pytest.raises(InvalidInput, match="begin with clew:"):
        [event async for event in agent.run("Hm?", thread_id="t", metadata={"clew:own": 1})]


async def test_an_agent_among_the_tools_works_on_the_store_of_the_agent_that_calls_it() -> None:
    checkpointer = MemoryCheckpointer()
    child = Agent(model=ScriptedModel(["It is mild."]), agent_id="forecaster")
    parent = Agent(
        model=ScriptedModel([call("forecaster", task="Paris?"), "Mild, they say."]),
        tools=[child],
        checkpointer=checkpointer,
    )
    seen = await events_of(parent, "How is it?")
    assert [event.reasoning for event in seen if isinstance(event, ThinkEvent)] == [None, "Mild, they say."]
    assert await checkpointer.list_threads() == ["t"]
    assert len([head async for head in Thread.list(checkpointer.store)]) == 2


async def test_a_summary_of_a_long_conversation_is_no_event_of_its_own() -> None:
    script: list[Response] = [
        call("weather", city="Paris"),
        call("weather", city="Rome"),
        "What was said so far.",
        "Both are mild.",
    ]
    model = ScriptedModel(script, by="order", usage=Usage(90, 5))
    agent = Agent(model=model, tools=[weather], context_window=100)
    seen = await events_of(agent, "Where is it mild?")
    assert [event.reasoning for event in seen if isinstance(event, ThinkEvent)] == [None, None, "Both are mild."]
    assert model.calls == 4
