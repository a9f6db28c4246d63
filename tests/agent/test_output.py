"""A tool that ends the task, in place of silence."""

from __future__ import annotations

import msgspec
import pytest

from clew import Thread
from clew.agent import Agent
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput
from clew.messages import plain_text
from clew.testing import Response, ScriptedModel, call
from clew.tools import ToolError, tool

pytestmark = pytest.mark.anyio


class Invoice(msgspec.Struct):
    order: str
    total: int


async def test_the_finish_tool_ends_the_run_with_its_answer(store: MemoryCheckpointer) -> None:
    model = ScriptedModel([call("finish", answer="All is well.")])
    result = await Agent(model, checkpointer=store, finish=True).run("Go.", thread_id="t")
    assert (result.status, result.output, result.turns) == ("done", "All is well.", 1)


async def test_a_model_that_falls_silent_is_told_to_go_on_or_to_finish(store: MemoryCheckpointer) -> None:
    model = ScriptedModel(["I think that is all.", call("finish", answer="All.")])
    result = await Agent(model, checkpointer=store, finish=True).run("Go.", thread_id="t")
    assert (result.output, result.turns) == ("All.", 2)
    assert "a call of finish" in plain_text(model.requests[-1].messages[-1])


async def test_the_finish_tool_takes_the_type_that_was_asked_for(store: MemoryCheckpointer) -> None:
    script: list[Response] = [
        call("finish", answer={"order": "7"}),
        call("finish", answer={"order": "7", "total": 12}),
    ]
    model = ScriptedModel(script)
    result = await Agent(model, checkpointer=store, finish=True, output=Invoice).run("Go.", thread_id="t")
    assert result.output == Invoice("7", 12)
    assert model.requests[0].output_schema is None, "the words of the model are free; only the call is typed"


@pytest.mark.parametrize("wanted", [str, int, list[int]])
async def test_the_finish_tool_takes_plain_types(wanted: type, store: MemoryCheckpointer) -> None:
    value = {str: "12", int: 12}.get(wanted, [1, 2])
    agent = Agent(ScriptedModel([call("finish", answer=value)]), checkpointer=store, finish=True, output=wanted)
    assert (await agent.run("Go.", thread_id="t")).output == value


async def test_a_finish_tool_of_the_users_own_may_refuse_to_end(store: MemoryCheckpointer) -> None:
    @tool(effect="none")
    async def submit(text: str) -> str:
        if "source" not in text:
            raise ToolError("name your source")
        return f"submitted: {text}"

    model = ScriptedModel([call("submit", text="It is so."), call("submit", text="It is so; source: A.")])
    result = await Agent(model, checkpointer=store, finish=submit).run("Go.", thread_id="t")
    assert (result.output, result.turns) == ("submitted: It is so; source: A.", 2)


async def test_a_finished_task_can_be_followed_by_another(store: MemoryCheckpointer) -> None:
    model = ScriptedModel([call("finish", answer="One."), call("finish", answer="Two.")])
    agent = Agent(model, checkpointer=store, finish=True)
    assert (await agent.run("First.", thread_id="t")).output == "One."
    assert (await agent.run("Second.", thread_id="t")).output == "Two."
    assert (await Thread.load(store, "t")).turns == 2


async def test_a_tool_that_is_called_finish_already_is_refused() -> None:
    @tool(name="finish")
    async def mine() -> None: ...

    with pytest.raises(InvalidInput, match="two tools are called 'finish'"):
        Agent(ScriptedModel(["Hi."]), tools=[mine], finish=True)
