"""Conversations that no longer fit, or soon will not."""

from __future__ import annotations

from typing import Any

import pytest

from clew import Thread
from clew.agent import Agent, Compacted, Unwound
from clew.checkpointers import MemoryCheckpointer
from clew.errors import ContextTooLong
from clew.messages import ToolCall, plain_text, tool_calls
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call, turns_in
from clew.tools import ToolContext, tool

pytestmark = pytest.mark.anyio

TOO_LONG = ContextTooLong("scripted", "too long")


@tool(effect="none")
async def read(lines: int, ctx: ToolContext) -> str:
    ctx.state["read"] = lines
    return "row\n" * lines


def _size(request: ModelRequest) -> int:
    return sum(len(str(message)) for message in request.messages)


def _is_summary(request: ModelRequest) -> bool:
    return plain_text(request.messages[0]).startswith("Below is a conversation")


async def test_a_turn_whose_results_do_not_fit_is_unwound_and_the_model_asks_for_less(
    store: MemoryCheckpointer,
) -> None:
    def script(request: ModelRequest) -> Response:
        if _size(request) > 10_000:
            return TOO_LONG
        if "did not fit" in plain_text(request.messages[-1]):
            return call("read", lines=10)
        return "Read." if turns_in(request) else call("read", lines=10_000)

    agent = Agent(ScriptedModel(script), tools=[read], checkpointer=store, on_overflow="unwind")
    events = [event async for event in agent.run("Read it.", thread_id="t")]
    assert [event.turn for event in events if isinstance(event, Unwound)] == [1]
    state = await Thread.load(store, "t")
    assert (state.status, state.turns, plain_text(state.messages[-1])) == ("done", 2, "Read.")
    assert "The calls were made (read)" in plain_text(state.messages[1])
    assert state.state == {"read": 10}, "what the unwound turn left in the state goes with it"
    assert len(state.history) > len(state.messages), "history is whole"
    assert state.unaccounted == 0


async def test_where_a_summary_does_not_help_the_last_turn_is_unwound(store: MemoryCheckpointer) -> None:
    def script(request: ModelRequest) -> Response:
        if _is_summary(request):
            return "You read a little."
        if _size(request) > 10_000:
            return TOO_LONG
        if "did not fit" in plain_text(request.messages[-1]):
            return "That is enough."
        return call("read", lines=10_000 if turns_in(request) else 10)

    agent = Agent(ScriptedModel(script), tools=[read], checkpointer=store)
    events = [event async for event in agent.run("Read it.", thread_id="t")]
    assert [type(event) for event in events if isinstance(event, Compacted | Unwound)] == [Compacted, Unwound]
    assert plain_text((await Thread.load(store, "t")).messages[-1]) == "That is enough."


async def test_what_cannot_be_made_to_fit_is_a_failure_that_says_so(store: MemoryCheckpointer) -> None:
    def script(request: ModelRequest) -> Response:
        if _is_summary(request):
            return "You tried to read."
        return TOO_LONG if _size(request) > 10_000 else call("read", lines=10_000)

    agent = Agent(ScriptedModel(script), tools=[read], checkpointer=store, on_overflow="unwind")
    with pytest.raises(ContextTooLong):
        await agent.run("Read it.", thread_id="t")
    assert (await Thread.load(store, "t")).status == "failed"
    with pytest.raises(ContextTooLong):
        await agent.run("A prompt that fits in nothing. " * 1000, thread_id="u")


async def test_a_summary_that_is_too_long_itself_is_asked_of_less(store: MemoryCheckpointer) -> None:
    asked: list[int] = []

    def script(request: ModelRequest) -> Response:
        if _is_summary(request):
            asked.append(_size(request))
            return TOO_LONG if _size(request) > 60_000 else "You read it."
        if len(request.messages) > 120:
            return TOO_LONG
        summed_up = any("Summary" in plain_text(message) for message in request.messages)
        return "Done." if summed_up else call("read", lines=600)

    agent = Agent(ScriptedModel(script), tools=[read], checkpointer=store, max_turns=100, compact_at=None)
    assert (await agent.run("Read it.", thread_id="t")).output == "Done."
    assert asked == sorted(asked, reverse=True)
    assert asked[0] > 60_000 >= asked[-1]


async def test_a_window_that_is_nearly_full_is_compacted_before_the_vendor_refuses(store: MemoryCheckpointer) -> None:
    def script(request: ModelRequest) -> Response:
        if _is_summary(request):
            return "You read it."
        summed_up = any("Summary" in plain_text(message) for message in request.messages)
        return "Done." if summed_up else call("read", lines=200)

    options: dict[str, Any] = {"context_window": 2000, "compact_at": 0.5}
    agent = Agent(ScriptedModel(script), tools=[read], checkpointer=store, **options)
    events = [event async for event in agent.run("Read it.", thread_id="t")]
    assert sum(isinstance(event, Compacted) for event in events) == 1
    state = await Thread.load(store, "t")
    assert (state.status, state.unaccounted) == ("done", 0)
    calls: list[ToolCall] = [found for message in state.history for found in tool_calls(message)]
    assert len(calls) == state.turns - 1
