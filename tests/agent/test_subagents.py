"""Agents as tools of agents: their questions, their links, and what survives."""

from __future__ import annotations

import pytest

from clew import Thread
from clew.agent import Agent
from clew.checkpointers import HeadQuery, MemoryCheckpointer
from clew.errors import InvalidInput, ModelUnavailable, ThreadBusy, UsageError
from clew.log import MessageAdded, ToolIntent
from clew.messages import ToolCall, assistant, plain_text, user
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


async def test_the_child_of_a_child_works_on_the_same_store(store: MemoryCheckpointer) -> None:
    grand = Agent(ScriptedModel(["Found."]), name="grand")
    child = Agent(ScriptedModel([call("grand", task="Find it."), "It is found."]), name="child", tools=[grand])
    script: list[Response] = [call("child", task="Find it."), "Done."]
    await Agent(ScriptedModel(script), tools=[child], checkpointer=store).run("Go.", thread_id="t")
    threads = sorted([head.thread_id async for head in store.heads(HeadQuery())], key=len)
    assert [name.count("/") for name in threads] == [0, 1, 2]


async def test_a_child_whose_model_is_away_stops_its_parent_and_is_resumed_with_it(store: MemoryCheckpointer) -> None:
    paid: list[str] = []

    @tool(effect="once")
    async def pay(order: str) -> str:
        paid.append(order)
        return "paid"

    def family(*script: Response) -> Agent:
        child = Agent(ScriptedModel(list(script)), name="payer", tools=[pay])
        parent: list[Response] = [call("payer", task="Pay 7."), "All is paid."]
        return Agent(ScriptedModel(parent), tools=[child], checkpointer=store)

    with pytest.raises(ModelUnavailable):
        await family(call("pay", order="7"), ModelUnavailable("scripted", "it is down", attempts=1)).run(
            "Go.", thread_id="t"
        )
    result = await family(call("pay", order="7"), "Paid.").run("Go.", thread_id="t")
    assert (result.output, paid) == ("All is paid.", ["7"])


async def test_a_child_that_somebody_else_works_on_stops_its_parent(store: MemoryCheckpointer) -> None:
    child = Agent(ScriptedModel(["Found."]), name="finder")
    parent = Agent(ScriptedModel([call("finder", task="Find it."), "Done."]), tools=[child], checkpointer=store)
    async with Thread.open(store, "t") as thread:
        calls = ToolCall("c", "finder", {"task": "Find it."})
        await thread.append(MessageAdded(user("Go.")), MessageAdded(assistant(calls)), ToolIntent(1, 0, "ab12" * 8))
    async with Thread.open(store, "t/finder:ab12ab12ab12ab12"):
        with pytest.raises(ThreadBusy):
            await parent.run("Go.", thread_id="t")
    assert (await parent.run("Go.", thread_id="t")).output == "Done."


async def test_what_a_parent_takes_out_of_its_record_its_children_do_too(store: MemoryCheckpointer) -> None:
    child = Agent(ScriptedModel(["The card is 4111."]), name="reader", redact=["card"])
    script: list[Response] = [call("reader", task="Read 4111."), "Done."]
    agent = Agent(ScriptedModel(script), tools=[child], checkpointer=store, redact=[r"\d{4}"])
    await agent.run("Go.", thread_id="t")
    (head,) = [head async for head in store.heads(HeadQuery(parent="t"))]
    words = [plain_text(message) for message in (await Thread.load(store, head.thread_id)).messages]
    assert words == ["Read [redacted].", "The [redacted] is [redacted]."]


def test_an_agent_that_keeps_nothing_until_the_end_refuses_the_once_tools_of_its_children() -> None:
    @tool(effect="once")
    async def pay() -> None: ...

    child = Agent(ScriptedModel(["Hi."]), name="payer", tools=[pay])
    with pytest.raises(InvalidInput, match="payer's pay"):
        Agent(ScriptedModel(["Hi."]), tools=[child], durability="exit")
