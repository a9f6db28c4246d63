"""Answers given without an agent: on record, for the next resume."""

from __future__ import annotations

import pytest

from clew import Agent, Thread, ToolContext, tool
from clew.agent.questions import open_questions, record_answer
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput, ThreadBusy, ThreadNotFound, UsageError
from clew.testing import ScriptedModel, call

pytestmark = pytest.mark.anyio


@tool(effect="steps")
async def ask(about: str, ctx: ToolContext) -> str:
    return f"{about}: {await ctx.interrupt(f'Which {about}?')}"


def _agent(store: MemoryCheckpointer) -> Agent:
    model = ScriptedModel([call("ask", about="seat") + call("ask", about="meal"), "Thanks."])
    return Agent(model, tools=[ask], checkpointer=store)


async def test_a_recorded_answer_is_what_the_next_resume_goes_on_with(store: MemoryCheckpointer) -> None:
    waiting = await _agent(store).run("Ask.", thread_id="t")
    answers = {question.id: f"the best {question.arguments['about']}" for question in waiting.questions}
    await record_answer(store, "t", answers)
    state = await Thread.load(store, "t")
    assert (state.status, open_questions(state)) == ("interrupted", [])
    assert (await _agent(store).resume(thread_id="t")).output == "Thanks."
    assert "seat: the best seat" in str((await Thread.load(store, "t")).messages)


async def test_a_mistake_in_an_answer_leaves_the_thread_untouched(store: MemoryCheckpointer) -> None:
    await _agent(store).run("Ask.", thread_id="t")
    before = await store.head("t")
    for answer in ("one for both", {"9:9:nothing": "x"}):
        with pytest.raises(InvalidInput):
            await record_answer(store, "t", answer)
    assert await store.head("t") == before
    with pytest.raises(ThreadNotFound):
        await record_answer(store, "nobody", "x")
    assert await store.head("nobody") is None


async def test_the_same_answer_again_is_no_mistake_and_another_is(store: MemoryCheckpointer) -> None:
    waiting = await _agent(store).run("Ask.", thread_id="t")
    answers = {question.id: "x" for question in waiting.questions}
    await record_answer(store, "t", answers)
    await record_answer(store, "t", answers)
    assert (await Thread.load(store, "t")).status == "interrupted"
    with pytest.raises(UsageError):
        await record_answer(store, "t", "something else")


async def test_a_thread_that_somebody_works_on_takes_no_answer(store: MemoryCheckpointer) -> None:
    waiting = await _agent(store).run("Ask.", thread_id="t")
    answers = {question.id: "x" for question in waiting.questions}
    async with Thread.open(store, "t"):
        with pytest.raises(ThreadBusy):
            await record_answer(store, "t", answers)
