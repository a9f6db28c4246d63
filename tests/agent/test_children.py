"""Agents as tools of agents: their questions, their links, and what survives."""

from __future__ import annotations

import pytest

from clew import Thread
from clew.agent import Agent
from clew.checkpointers import HeadQuery, MemoryCheckpointer
from clew.errors import UsageError
from clew.testing import Response, ScriptedModel, call
from clew.tools import ToolContext, tool

pytestmark = pytest.mark.anyio


class Family:
    """A parent whose child asks before it pays, and asks for a name."""

    def __init__(self, store: MemoryCheckpointer) -> None:
        self.store = store
        self.paid: list[str] = []

    def agent(self, *child_script: Response) -> Agent:
        @tool(effect="once", approve=True)
        async def pay(order: str) -> str:
            self.paid.append(order)
            return "paid"

        @tool
        async def name(ctx: ToolContext) -> str:
            return f"the name is {await ctx.interrupt('What is its name?')}"

        child = Agent(ScriptedModel(list(child_script)), name="payer", tools=[pay, name])
        parent: list[Response] = [call("payer", task="Pay 7."), "All is paid."]
        return Agent(ScriptedModel(parent), name="boss", tools=[child], checkpointer=self.store)


async def test_what_a_child_asks_its_parent_asks_and_the_answer_reaches_the_child(store: MemoryCheckpointer) -> None:
    family = Family(store)
    script: list[Response] = [call("pay", order="7"), call("name"), "Paid."]
    waiting = await family.agent(*script).run("Go.", thread_id="t")
    (asked,) = waiting.questions
    assert (waiting.status, asked.kind, asked.tool, asked.arguments) == ("waiting", "approval", "payer", {"order": "7"})
    assert family.paid == []
    again = await family.agent(*script).resume(thread_id="t", answer=True)
    (asked,) = again.questions
    assert (asked.kind, asked.text, family.paid) == ("question", "payer: What is its name?", ["7"])
    done = await family.agent(*script).resume(thread_id="t", answer="Ada")
    assert (done.status, done.output, family.paid) == ("done", "All is paid.", ["7"])
    (child,) = [head async for head in store.heads(HeadQuery(parent="t"))]
    assert "the name is Ada" in str((await Thread.load(store, child.thread_id)).messages)


async def test_a_refusal_reaches_the_child(store: MemoryCheckpointer) -> None:
    family = Family(store)
    script: list[Response] = [call("pay", order="7"), "Not paid."]
    await family.agent(*script).run("Go.", thread_id="t")
    done = await family.agent(*script).resume(thread_id="t", answer="too dear")
    assert (done.status, family.paid) == ("done", [])
    (child,) = [head async for head in store.heads(HeadQuery(parent="t"))]
    assert "too dear" in str((await Thread.load(store, child.thread_id)).messages)


async def test_two_questions_of_a_child_at_once_are_asked_one_after_the_other(store: MemoryCheckpointer) -> None:
    family = Family(store)
    script: list[Response] = [call("pay", order="7") + call("pay", order="8"), "Paid."]
    await family.agent(*script).run("Go.", thread_id="t")
    second = await family.agent(*script).resume(thread_id="t", answer=True)
    assert (second.status, second.questions[0].arguments, family.paid) == ("waiting", {"order": "8"}, [])
    done = await family.agent(*script).resume(thread_id="t", answer=False)
    assert (done.status, family.paid) == ("done", ["7"])


async def test_a_child_knows_the_turn_of_its_parent(store: MemoryCheckpointer) -> None:
    child = Agent(ScriptedModel(["Found."]), name="finder")
    script: list[Response] = [call("nothing"), call("finder", task="Find it."), "Done."]
    await Agent(ScriptedModel(script), tools=[child], checkpointer=store).run("Go.", thread_id="t")
    assert [head.parent async for head in store.heads(HeadQuery(parent="t"))] == [("t", 2)]


async def test_a_tool_that_must_run_once_cannot_ask_a_person(store: MemoryCheckpointer) -> None:
    async def helper(ctx: ToolContext) -> str:
        return str(await ctx.interrupt("Which?"))

    @tool(effect="once")
    async def pick(ctx: ToolContext) -> str:
        return await helper(ctx)

    agent = Agent(ScriptedModel([call("pick"), "Done."]), tools=[pick], checkpointer=store)
    with pytest.raises(UsageError, match="effect='steps'"):
        await agent.run("Go.", thread_id="t")
