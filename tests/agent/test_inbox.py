"""What is posted to the inbox of a thread is taken in by the agent: at the end of a turn, exactly once."""

from __future__ import annotations

import logging

import pytest

from clew import Thread
from clew.agent import Agent
from clew.checkpointers import MemoryCheckpointer
from clew.errors import Unavailable
from clew.messages import plain_text
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.tools import ToolContext, tool

pytestmark = pytest.mark.anyio


def chapters(request: ModelRequest) -> Response:
    return f"Chapter {sum(message.__struct_config__.tag == 'assistant' for message in request.messages) + 1}."


def writer(store: MemoryCheckpointer, **settings: object) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(chapters)
    return Agent(model, name="writer", checkpointer=store, **settings), model  # type: ignore[arg-type]


async def said(store: MemoryCheckpointer, thread_id: str = "t") -> list[str]:
    """The conversation, as the role and the text of each message."""
    state = await Thread.load(store, thread_id)
    return [f"{message.__struct_config__.tag}: {plain_text(message)}" for message in state.messages]


async def test_a_prompt_posted_while_a_tool_runs_is_seen_with_its_result(store: MemoryCheckpointer) -> None:
    @tool
    async def work() -> str:
        await Thread.post(store, "t", "Be brief.", prompt_id="p1")
        return "worked"

    agent = Agent(ScriptedModel([call("work"), "Done."]), tools=[work], checkpointer=store)
    result = await agent.run("Work.", thread_id="t")
    assert (result.status, result.output, result.prompt) == ("done", "Done.", "Work.")
    assert await said(store) == ["user: Work.", "assistant: ", "tool: ", "user: Be brief.", "assistant: Done."]
    found = (await agent.trajectory("t")).exchanges
    assert [(each.prompt, each.status, each.output) for each in found] == [
        ("Work.", "done", "Done."),
        ("Be brief.", "done", "Done."),
    ]
    assert (await Thread.load(store, "t")).unaccounted == 0


async def test_a_prompt_posted_during_the_last_response_is_asked_before_the_run_ends(store: MemoryCheckpointer) -> None:
    async def script(request: ModelRequest) -> Response:
        if len(request.messages) == 1:
            await Thread.post(store, "t", "And then?")
        return chapters(request)

    agent = Agent(ScriptedModel(script), checkpointer=store)
    result = await agent.run("Tell.", thread_id="t")
    assert (result.output, result.prompt) == ("Chapter 2.", "Tell.")
    found = (await agent.trajectory("t")).exchanges
    assert [(each.prompt, each.output) for each in found] == [("Tell.", "Chapter 1."), ("And then?", "Chapter 2.")]


async def test_a_resume_goes_on_with_what_was_posted_to_a_thread_that_was_done(store: MemoryCheckpointer) -> None:
    agent, model = writer(store)
    await agent.run("Tell.", thread_id="t")
    name = await Thread.post(store, "t", "And then?")
    result = await agent.resume(thread_id="t")
    assert (result.prompt, result.prompt_id, result.output, model.calls) == ("And then?", name, "Chapter 2.", 2)
    assert (await agent.resume(thread_id="t")).output == "Chapter 2."
    assert model.calls == 2, "a post is asked once"


async def test_posts_come_before_the_prompt_of_the_next_run_and_are_answered_with_it(store: MemoryCheckpointer) -> None:
    agent, model = writer(store)
    await agent.run("One.", thread_id="t")
    await Thread.post(store, "t", "Two.")
    await Thread.post(store, "t", "Three.")
    result = await agent.run("Four.", thread_id="t")
    assert (result.prompt, result.output, model.calls) == ("Four.", "Chapter 2.", 2)
    found = (await agent.trajectory("t")).exchanges
    assert [(each.prompt, each.output) for each in found] == [
        ("One.", "Chapter 1."),
        *[(prompt, "Chapter 2.") for prompt in ("Two.", "Three.", "Four.")],
    ]


async def test_the_answer_of_a_posted_prompt_is_found_by_its_id(store: MemoryCheckpointer) -> None:
    agent, model = writer(store)
    await agent.run("One.", thread_id="t")
    await Thread.post(store, "t", "Two.", prompt_id="p2")
    await agent.resume(thread_id="t")
    result = await agent.run("Two.", thread_id="t", prompt_id="p2")
    assert (result.output, model.calls) == ("Chapter 2.", 2)


async def test_a_prompt_that_is_on_record_is_not_asked_again_because_it_is_posted_too(
    store: MemoryCheckpointer,
) -> None:
    agent, model = writer(store)
    await agent.run("One.", thread_id="t", prompt_id="p1")
    await Thread.post(store, "t", "One.", prompt_id="p1")
    await agent.resume(thread_id="t")
    await Thread.post(store, "t", "Two.", prompt_id="p2")
    assert (await agent.run("Two.", thread_id="t", prompt_id="p2")).output == "Chapter 2."
    assert model.calls == 2
    assert await said(store) == ["user: One.", "assistant: Chapter 1.", "user: Two.", "assistant: Chapter 2."]


async def test_a_run_that_was_stopped_before_its_first_response_is_not_asked_twice_because_of_a_post(
    store: MemoryCheckpointer,
) -> None:
    def stopped(request: ModelRequest) -> Response:
        raise KeyError("stopped")

    with pytest.raises(KeyError):
        await Agent(ScriptedModel(stopped), checkpointer=store).run("One.", thread_id="t")
    await Thread.post(store, "t", "Two.")
    with pytest.raises(KeyError):
        await Agent(ScriptedModel(stopped), checkpointer=store).run("One.", thread_id="t")
    agent, model = writer(store)
    result = await agent.run("One.", thread_id="t")
    assert (result.prompt, result.output, model.calls) == ("One.", "Chapter 1.", 1)
    assert await said(store) == ["user: One.", "user: Two.", "assistant: Chapter 1."]


async def test_the_turns_of_a_posted_prompt_are_counted_from_it(store: MemoryCheckpointer) -> None:
    @tool
    async def work() -> str:
        if not posted:
            posted.append(await Thread.post(store, "t", "Go on."))
        return "worked"

    posted: list[str] = []
    agent = Agent(
        ScriptedModel([call("work"), call("work"), "Done."]),
        tools=[work],
        checkpointer=store,
        max_turns=2,
        warn_turns=0,
    )
    assert (await agent.run("Work.", thread_id="t")).status == "done"


def asking() -> tuple[list[str], object]:
    approved: list[str] = []

    @tool(effect="steps", approve=True)
    async def pay(amount: int) -> str:
        approved.append(str(amount))
        return "paid"

    return approved, pay


async def test_a_posted_answer_lets_a_thread_go_on_that_waits(store: MemoryCheckpointer) -> None:
    paid, pay = asking()
    agent = Agent(ScriptedModel([call("pay", amount=3), "Done."]), tools=[pay], checkpointer=store)  # type: ignore[list-item]
    assert (await agent.run("Pay.", thread_id="t")).status == "waiting"
    await Thread.post(store, "t", "Then rest.", answer=True)
    result = await agent.resume(thread_id="t")
    assert (result.status, paid) == ("done", ["3"])
    assert (await said(store))[-2:] == ["user: Then rest.", "assistant: Done."]


async def test_a_prompt_posted_to_a_thread_that_waits_is_asked_after_the_answer(store: MemoryCheckpointer) -> None:
    paid, pay = asking()
    agent = Agent(ScriptedModel([call("pay", amount=3), "Done."]), tools=[pay], checkpointer=store)  # type: ignore[list-item]
    await agent.run("Pay.", thread_id="t")
    await Thread.post(store, "t", "Then rest.")
    assert (await agent.resume(thread_id="t")).status == "waiting"
    result = await agent.resume(thread_id="t", answer=True)
    assert (result.status, paid) == ("done", ["3"])
    assert (await said(store))[-2:] == ["user: Then rest.", "assistant: Done."]


async def test_an_answer_to_a_thread_that_asks_nothing_is_dropped_with_a_warning(
    store: MemoryCheckpointer, caplog: pytest.LogCaptureFixture
) -> None:
    agent, model = writer(store)
    await agent.run("One.", thread_id="t")
    await Thread.post(store, "t", answer="yes")
    with caplog.at_level(logging.WARNING, "clew.agent"):
        assert (await agent.resume(thread_id="t")).output == "Chapter 1."
    assert "an answer that was posted to it is dropped" in caplog.text
    assert model.calls == 1
    async with Thread.open(store, "t") as thread:
        assert await thread.posts() == ()


async def test_a_rewind_never_asks_a_post_again(store: MemoryCheckpointer) -> None:
    agent, model = writer(store)
    await agent.run("One.", thread_id="t")
    await Thread.post(store, "t", "Two.", prompt_id="p2")
    await agent.resume(thread_id="t")
    async with Thread.open(store, "t") as thread:
        await thread.rewind(1)
        assert await thread.posts() == ()
    await agent.run("Three.", thread_id="t")
    assert await said(store) == ["user: One.", "assistant: Chapter 1.", "user: Three.", "assistant: Chapter 2."]
    assert model.calls == 3


async def test_what_is_posted_goes_on_record_without_secrets(store: MemoryCheckpointer) -> None:
    agent, _ = writer(store)
    await agent.run("One.", thread_id="t")
    await Thread.post(store, "t", "My key is 12345.", answer={"key": "12345"}, redact=[r"12345"])
    async with Thread.open(store, "t") as thread:
        (post,) = await thread.posts()
    assert (post.prompt, post.answer) == ("My key is [redacted].", {"key": "[redacted]"})


async def test_the_thread_of_a_sub_agent_takes_posts_too(store: MemoryCheckpointer) -> None:
    @tool
    async def look(ctx: ToolContext) -> str:
        await Thread.post(store, ctx.thread_id, "Look twice.")
        names.append(ctx.thread_id)
        return "seen"

    names: list[str] = []
    child = Agent(ScriptedModel([call("look"), "Found."]), name="scout", tools=[look], checkpointer=store)
    agent = Agent(ScriptedModel([call("scout", task="Go."), "Done."]), tools=[child], checkpointer=store)
    assert (await agent.run("Search.", thread_id="t")).output == "Done."
    assert "user: Look twice." in await said(store, names[0])


async def test_a_store_that_does_not_answer_for_the_inbox_does_not_stop_the_run(
    store: MemoryCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(thread: Thread) -> tuple[()]:
        raise Unavailable("away")

    monkeypatch.setattr(Thread, "posts", unavailable)
    agent, _ = writer(store)
    assert (await agent.run("One.", thread_id="t")).status == "done"


async def test_posts_in_memory_until_the_end_of_the_run_are_taken_in_once(store: MemoryCheckpointer) -> None:
    agent, model = writer(store, durability="exit")
    await agent.run("One.", thread_id="t")
    await Thread.post(store, "t", "Two.")
    await agent.resume(thread_id="t")
    await agent.resume(thread_id="t")
    assert model.calls == 2
