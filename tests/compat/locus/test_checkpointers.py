"""Checkpointers with Locus' names: what they save, load, list, find, copy and delete."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew import Thread
from clew.checkpointers import MemoryCheckpointer as ClewMemory
from clew.compat.locus import Agent, AgentState, Message, ToolCall, ToolExecution, ToolResult, tool
from clew.compat.locus.memory import BaseCheckpointer, CheckpointerCapabilities
from clew.compat.locus.memory.backends import MemoryCheckpointer, sqlite_checkpointer
from clew.errors import Conflict, InvalidInput, ThreadBusy, Unavailable
from clew.log import MessageAdded
from clew.messages import Image, Thinking, Tool, assistant, user
from clew.messages import ToolResult as ClewResult
from clew.testing import Response, ScriptedModel, call, reply, say, think
from tests.stores import make_store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def checkpointer() -> AsyncIterator[BaseCheckpointer]:
    async with MemoryCheckpointer() as checkpointer:
        yield checkpointer


def a_state(*messages: Message, **fields: Any) -> AgentState:
    said = messages or (Message.system("You plan trips."), Message.user("Paris?"), Message.assistant("Gladly."))
    return AgentState(messages=tuple(said), **fields)


async def loaded(checkpointer: BaseCheckpointer, thread_id: str = "t", name: str | None = None) -> AgentState:
    found = await checkpointer.load(thread_id, name)
    assert found is not None
    return found


def told(state: AgentState) -> list[str | None]:
    return [message.content for message in state.messages]


async def ran(checkpointer: BaseCheckpointer, *prompts: str, thread_id: str = "t") -> None:
    script: list[Response] = [reply(think("Hm."), "One."), "Two.", "Three.", "Four."]
    agent = Agent(model=ScriptedModel(script), checkpointer=checkpointer)
    for prompt in prompts:
        await agent.run(prompt, thread_id=thread_id).__anext__()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
async def test_a_state_comes_back_as_it_was_saved(kind: str, tmp_path: Path) -> None:
    made = ToolCall(id="call_1", name="weather", arguments={"city": "Paris"})
    broken = ToolCall(id="call_2", name="weather", malformed_arguments="{city:")
    state = a_state(
        Message.system("You plan trips."),
        Message.user("How is it in Paris?"),
        Message.assistant("Let me look.", [made, broken]),
        Message.tool(ToolResult(tool_call_id="call_1", name="weather", content="18 degrees")),
        Message.tool(ToolResult(tool_call_id="call_2", name="weather", content="", error="not JSON")),
        Message.assistant("Mild."),
        agent_id="planner",
        iteration=2,
        confidence=0.7,
        confidence_history=(0.5, 0.7),
        tool_executions=(ToolExecution(tool_name="weather", tool_call_id="call_2", error="not JSON"),),
        prompt_tokens_used=30,
        completion_tokens_used=5,
        total_tokens_used=35,
        errors=("one",),
        metadata={"user": "Alex", "stops": ["Paris"]},
    )
    async with BaseCheckpointer(make_store(kind, tmp_path)) as checkpointer:
        name = await checkpointer.save(state, "t", metadata={"label": "first"})
        assert await checkpointer.load("t") == state
        assert await checkpointer.load("t", name) == state
        head = await checkpointer.store.head("t")
        assert head is not None
        assert (head.agent, head.status, head.turns, head.input_tokens, head.tags) == (
            "planner",
            "done",
            2,
            30,
            {"label": "first"},
        )


async def test_what_is_not_there_is_none_and_what_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    async with MemoryCheckpointer() as checkpointer:
        assert await checkpointer.load("nobody") is None
        assert await checkpointer.get_metadata("nobody") is None
        assert await checkpointer.list_checkpoints("nobody") == []
        assert not await checkpointer.exists("nobody")
        assert not await checkpointer.delete("nobody")
        assert not await checkpointer.copy_thread("nobody", "other")
        await checkpointer.save(a_state(), "t")
        assert await checkpointer.load("t", "another") is None
        assert await checkpointer.load("t", "turn-7") is None
        assert await checkpointer.get_metadata("t", "another") is None
    (tmp_path / "folder").mkdir()
    async with sqlite_checkpointer(tmp_path / "folder") as gone:
        with pytest.raises((Unavailable, InvalidInput)):
            await gone.load("t")


async def test_each_saved_state_has_an_id_and_each_turn_of_an_agent_has_one(checkpointer: BaseCheckpointer) -> None:
    await ran(checkpointer, "1?", "2?")
    state = await loaded(checkpointer)
    name = await checkpointer.save(state.with_message(Message.user("And?")), "t")
    assert await checkpointer.save(a_state(), "other", "mine") == "mine"
    assert await checkpointer.list_checkpoints("t") == [name, "turn-2", "turn-1"]
    assert await checkpointer.list_checkpoints("t", limit=2) == [name, "turn-2"]
    assert await checkpointer.list_checkpoints("other") == ["mine"]
    assert told(await loaded(checkpointer, "t", "turn-1")) == ["1?", "One."]
    assert told(await loaded(checkpointer)) == ["1?", "One.", "2?", "Two.", "And?"]
    assert await checkpointer.exists("t", "turn-2")
    assert not await checkpointer.exists("t", "turn-3")


async def test_saving_adds_what_is_new_and_keeps_what_locus_does_not_know(checkpointer: BaseCheckpointer) -> None:
    await ran(checkpointer, "1?")
    before = await Thread.load(checkpointer.store, "t")
    await checkpointer.save((await loaded(checkpointer)).with_message(Message.user("And?")), "t")
    after = await Thread.load(checkpointer.store, "t")
    assert after.history[: len(before.history)] == before.history
    assert len(after.history) == len(before.history) + 1
    assert isinstance(after.history[1].content[0], Thinking)


async def test_going_back_is_saving_an_earlier_state_and_nothing_is_lost(checkpointer: BaseCheckpointer) -> None:
    await ran(checkpointer, "1?", "2?")
    later = await checkpointer.save(await loaded(checkpointer), "t", "later")
    back = await checkpointer.save(await loaded(checkpointer, "t", "turn-1"), "t", "back")
    assert told(await loaded(checkpointer)) == ["1?", "One."]
    assert await checkpointer.list_checkpoints("t") == [back, later, "turn-1"]
    assert told(await loaded(checkpointer, "t", later)) == ["1?", "One.", "2?", "Two."]
    await ran(checkpointer, "3?")
    assert told(await loaded(checkpointer)) == ["1?", "One.", "3?", "Two."]
    assert (await checkpointer.list_checkpoints("t"))[0] == "turn-2"
    await checkpointer.save(await loaded(checkpointer, "t", later), "t")
    assert told(await loaded(checkpointer)) == ["1?", "One.", "2?", "Two."]


async def test_values_are_those_of_the_state_that_was_saved_last(checkpointer: BaseCheckpointer) -> None:
    await checkpointer.save(a_state(metadata={"a": 1}), "t", "first")
    more = (await loaded(checkpointer)).with_messages([Message.user("And?"), Message.assistant("Yes.")])
    await checkpointer.save(more.with_metadata("b", [2]), "t", "second")
    back = msgspec.structs.replace(await loaded(checkpointer, "t", "first"), metadata={"b": [2]})
    await checkpointer.save(back, "t")
    assert (await loaded(checkpointer)).metadata == {"b": [2]}
    assert (await Thread.load(checkpointer.store, "t")).state["b"] == [2]


SAID = st.sampled_from(
    [
        Message.user("Paris?"),
        Message.user("Rome?"),
        Message.assistant("Gladly."),
        Message.assistant(None, [ToolCall(id="c1", name="look"), ToolCall(id="c2", name="look")]),
        Message.tool(ToolResult(tool_call_id="c1", name="look", content="seen")),
        Message.tool(ToolResult(tool_call_id="c2", name="look", content="also seen")),
        Message.system("Hurry."),
    ]
)
STATES = st.builds(
    lambda prompt, said, values, tokens: a_state(
        Message.system(prompt), *said, metadata=values, prompt_tokens_used=tokens, total_tokens_used=tokens
    ),
    st.sampled_from(["You plan trips.", "You are short."]),
    st.lists(SAID, max_size=6),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)),
    st.integers(0, 3),
)


@given(st.lists(STATES, min_size=1, max_size=5))
def test_whatever_is_saved_the_newest_is_loaded_and_each_by_its_id(states: list[AgentState]) -> None:
    async def check() -> None:
        async with MemoryCheckpointer() as checkpointer:
            saved = {}
            for state in states:
                saved[await checkpointer.save(state, "t")] = state
                assert await checkpointer.load("t") == state
                for name, earlier in saved.items():
                    assert await checkpointer.load("t", name) == earlier
            assert set(await checkpointer.list_checkpoints("t", limit=100)) == set(saved)

    asyncio.run(check())


async def test_after_a_run_what_grows_is_counted_by_the_thread(checkpointer: BaseCheckpointer) -> None:
    state = a_state(
        iteration=1, confidence=0.9, prompt_tokens_used=1000, completion_tokens_used=10, total_tokens_used=1010
    )
    await checkpointer.save(state, "t")
    agent = Agent(
        model=ScriptedModel(["Gladly.", "Booked."]), system_prompt="You plan trips.", checkpointer=checkpointer
    )
    await agent.run("Book it.", thread_id="t").__anext__()
    now = await loaded(checkpointer)
    assert told(now) == ["You plan trips.", "Paris?", "Gladly.", "Book it.", "Booked."]
    assert (now.iteration, now.confidence) == (2, 0.9)
    assert now.prompt_tokens_used > 1000
    assert now.updated_at > state.updated_at


async def test_a_call_without_a_result_is_in_doubt_for_the_agent_that_goes_on(checkpointer: BaseCheckpointer) -> None:
    paid = []

    @tool
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    state = a_state(
        Message.user("Pay."), Message.assistant(None, [ToolCall(id="c", name="pay", arguments={"amount": 5})])
    )
    await checkpointer.save(state, "t")
    model = ScriptedModel(["", "I will find out."], by="turns")
    agent = Agent(model=model, tools=[pay], checkpointer=checkpointer)
    await agent.run("Did you?", thread_id="t").__anext__()
    assert paid == []
    assert "not known" in str(model.requests[0].messages)


async def test_an_image_that_a_tool_returned_stays_one(checkpointer: BaseCheckpointer) -> None:
    shown = "the page\n[locus-image media_type=image/png]\n" + base64.b64encode(b"png").decode() + "\n[/locus-image]\n"
    made = Message.assistant(None, [ToolCall(id="c", name="look")])
    seen = Message.tool(ToolResult(tool_call_id="c", name="look", content=shown))
    await checkpointer.save(a_state(Message.user("Look."), made, seen), "t")
    state = await Thread.load(checkpointer.store, "t")
    [result] = state.history[2].content
    assert isinstance(result, ClewResult)
    assert Image("image/png", b"png") in result.content
    assert told(await loaded(checkpointer))[-1] == shown


async def test_threads_are_found_by_id_by_metadata_and_by_what_was_said(checkpointer: BaseCheckpointer) -> None:
    for name, city in (("user-1", "Paris"), ("user-2", "Rome"), ("other", "Oslo")):
        state = a_state(Message.user(f"To {city}!"), Message.assistant("Gladly."))
        await checkpointer.save(state, name, metadata={"city": city, "stars": 4})
    assert await checkpointer.list_threads() == ["other", "user-2", "user-1"]
    assert await checkpointer.list_threads(limit=1) == ["other"]
    assert await checkpointer.list_threads(pattern="user-?") == ["user-2", "user-1"]
    assert await checkpointer.list_threads(pattern="[uo]*2") == ["user-2"]
    [found] = await checkpointer.query_by_metadata("city", "Rome")
    assert (found["thread_id"], found["metadata"]) == ("user-2", {"city": "Rome", "stars": 4})
    assert AgentState.from_checkpoint(found["data"]) == await checkpointer.load("user-2")
    assert len(await checkpointer.query_by_metadata("stars", 4)) == 3
    assert len(await checkpointer.query_by_metadata("stars", 4, limit=2)) == 2
    assert await checkpointer.query_by_metadata("stars", 5) == []
    [hit] = await checkpointer.search("oslo")
    assert (hit["thread_id"], hit["score"] >= 1) == ("other", True)
    assert [about["metadata"]["city"] for about in await checkpointer.list_with_metadata(limit=2)] == ["Oslo", "Rome"]


async def test_metadata_says_when_and_under_which_id(checkpointer: BaseCheckpointer) -> None:
    first = await checkpointer.save(a_state(), "t", metadata={"label": "a", "by": "Alex"})
    await checkpointer.save(
        (await loaded(checkpointer)).with_message(Message.user("And?")), "t", metadata={"label": "b"}
    )
    newest, earlier = await checkpointer.get_metadata("t"), await checkpointer.get_metadata("t", first)
    assert newest is not None
    assert earlier is not None
    assert (newest["metadata"], earlier["metadata"]) == ({"label": "b", "by": "Alex"}, {"label": "a", "by": "Alex"})
    assert newest["checkpoint_id"] == (await checkpointer.list_checkpoints("t"))[0]
    assert earlier["updated_at"] < newest["updated_at"]
    assert newest["created_at"] == earlier["created_at"]


async def test_a_copy_has_all_states_and_goes_its_own_way(checkpointer: BaseCheckpointer) -> None:
    await ran(checkpointer, "1?", "2?")
    assert await checkpointer.copy_thread("t", "branch")
    assert await checkpointer.list_checkpoints("branch") == await checkpointer.list_checkpoints("t")
    await ran(checkpointer, "3?", thread_id="branch")
    assert told(await loaded(checkpointer)) == ["1?", "One.", "2?", "Two."]
    assert told(await loaded(checkpointer, "branch"))[-1] == "Three."
    with pytest.raises(Conflict):
        await checkpointer.copy_thread("t", "branch")


async def test_vacuum_deletes_what_was_not_changed_for_so_many_days(checkpointer: BaseCheckpointer) -> None:
    await checkpointer.save(a_state(), "old")
    assert await checkpointer.vacuum(older_than_days=30) == 0
    assert await checkpointer.vacuum(older_than_days=0) == 1
    assert await checkpointer.list_threads() == []


async def test_a_thread_is_deleted_with_those_of_its_sub_agents(checkpointer: BaseCheckpointer) -> None:
    child = Agent(model=ScriptedModel(["Mild."]), agent_id="forecaster")
    model = ScriptedModel([call("forecaster", task="Paris?"), say("Mild.")])
    await Agent(model=model, tools=[child], checkpointer=checkpointer).run("How is it?", thread_id="t").__anext__()
    assert await checkpointer.delete("t")
    assert [head.thread_id async for head in Thread.list(checkpointer.store)] == []


async def test_the_id_of_a_state_can_be_deleted_and_a_turn_cannot(checkpointer: BaseCheckpointer) -> None:
    await ran(checkpointer, "1?")
    name = await checkpointer.save(await loaded(checkpointer), "t")
    assert await checkpointer.delete("t", name)
    assert not await checkpointer.delete("t", name)
    assert name not in await checkpointer.list_checkpoints("t")
    with pytest.raises(InvalidInput, match="later turns build on it"):
        await checkpointer.delete("t", "turn-1")


async def test_a_thread_on_which_somebody_works_is_not_changed(checkpointer: BaseCheckpointer) -> None:
    await checkpointer.save(a_state(), "t")
    async with Thread.open(checkpointer.store, "t"):
        with pytest.raises(ThreadBusy):
            await checkpointer.save(a_state(), "t")
        with pytest.raises(ThreadBusy):
            await checkpointer.delete("t")
    assert await checkpointer.load("t") is not None


async def test_a_thread_of_clew_can_be_loaded_too(checkpointer: BaseCheckpointer) -> None:
    async with Thread.open(checkpointer.store, "t") as thread:
        results = Tool((ClewResult("c", ()),))
        await thread.append(MessageAdded(user("Hi.")), MessageAdded(assistant("Hello.")), MessageAdded(results))
    assert [message.role for message in (await loaded(checkpointer)).messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda kept: kept.save("t", a_state()), "takes a state and then the thread's id"),
        (lambda kept: kept.save(a_state(), "t", "turn-1"), "names a turn"),
        (lambda kept: kept.save(a_state(), "t", ""), "not empty"),
        (lambda kept: kept.save(a_state(), "t", metadata={"clew:part": "1"}), "does not begin with clew:"),
        (lambda kept: kept.save(a_state(), "t", metadata={"a": object()}), "metadata is made of"),
        (lambda kept: kept.save(a_state(metadata={"clew:prompts": 1}), "t"), "Clew's own"),
        (lambda kept: kept.save(a_state(metadata={"a": object()}), "t"), "a is not made of"),
        (lambda kept: kept.save(a_state(provider_state="\ud800"), "t"), "cannot be stored as JSON"),
        (lambda kept: kept.vacuum(older_than_days=-1), "a number of days"),
        (lambda kept: kept.list_threads(limit=-1), "limit is a whole number"),
    ],
)
async def test_bad_input_is_refused_and_nothing_is_saved(wrong: Any, says: str, checkpointer: BaseCheckpointer) -> None:
    with pytest.raises(InvalidInput, match=says):
        await wrong(checkpointer)
    assert await checkpointer.list_threads() == []


def test_a_checkpointer_is_made_of_a_store_and_can_do_all() -> None:
    kept = BaseCheckpointer(ClewMemory())
    assert kept.capabilities == CheckpointerCapabilities(
        search=True,
        metadata_query=True,
        vacuum=True,
        branching=True,
        ttl=False,
        list_threads=True,
        list_with_metadata=True,
        persistent_checkpoint_ids=True,
    )
    with pytest.raises(InvalidInput, match="a checkpointer of Clew"):
        BaseCheckpointer("sqlite:///clew.db")  # type: ignore[arg-type]
