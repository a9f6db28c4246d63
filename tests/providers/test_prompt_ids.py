"""A prompt to a provider is known by its id, never by its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Agent, Thread
from clew.agent import TextDelta
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput, ProviderError
from clew.log import Usage
from clew.messages import plain_text
from clew.testing import ScriptedModel, call
from clew.tools import tool
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

pytestmark = pytest.mark.anyio


async def prompts_of(store: MemoryCheckpointer, thread_id: str) -> list[str]:
    state = await Thread.load(store, thread_id)
    return [plain_text(message) for message in state.messages if message.__struct_config__.tag == "user"]


async def test_the_same_id_again_returns_its_answer_and_starts_no_program(tmp_path: Path) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    session = toy_agent(place, store).start_session()
    first = await session.send("say one", prompt_id="m1")
    await session.send("say two", prompt_id="m2")
    (place.home / "toy-is-not-installed").touch()
    head = await store.head(session.thread_id)
    again = await toy_agent(place, store).run("say one", thread_id=session.thread_id, prompt_id="m1")
    assert (again.output, again.status, again.prompt_id, again.blocks) == ("one", "done", "m1", first.blocks)
    assert (again.usage, again.cost, await store.head(session.thread_id)) == (Usage(), 0.0, head)


async def test_another_id_with_the_same_words_is_a_new_prompt(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    for prompt_id in ("m1", "m2", None, None):
        await session.run("say next", prompt_id=prompt_id)
    assert await prompts_of(store, session.thread_id) == ["say next"] * 4
    told = (await session.trajectory()).exchanges
    assert [turn.prompt_id for turn in told[:2]] == ["m1", "m2"]
    assert len({turn.prompt_id for turn in told}) == 4


async def test_a_prompt_that_a_resume_asks_with_an_id_is_asked_once(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    agent = toy_agent(toy_place(tmp_path), store)
    session = agent.start_session()
    await session.send("say one")
    for resume in (agent.resume, session.resume):
        assert (await resume("say two", prompt_id="m1")).output == "two"
        with pytest.raises(InvalidInput, match="Give both"):
            resume(prompt_id="m1")
    assert await prompts_of(store, session.thread_id) == ["say one", "say two"]


async def test_a_thread_that_waits_and_goes_on_at_a_provider_waits_no_more_and_asks_no_prompt_twice(
    tmp_path: Path,
) -> None:
    @tool(approve=True)
    async def pay(to: str) -> str:
        return f"paid {to}"

    store = MemoryCheckpointer()
    own = Agent(ScriptedModel([call("pay", to="Ada"), *["Here."] * 4]), tools=[pay], checkpointer=store)
    await own.run("say one", thread_id="t", prompt_id="m1")
    await own.run("say two", thread_id="t", prompt_id="m2")
    await toy_agent(toy_place(tmp_path), store).run("say two", thread_id="t", prompt_id="m2")
    assert await own.questions("t") == []
    assert (await own.run("say three", thread_id="t", prompt_id="m3")).output == "Here."
    told = [(turn.prompt_id, turn.status, turn.reason) for turn in (await own.trajectory("t")).exchanges]
    overtaken = "another prompt was asked before it was answered"
    assert told == [("m1", "interrupted", overtaken), ("m2", "done", ""), ("m3", "done", "")]


async def test_the_same_id_asks_again_what_was_stopped_and_the_program_is_told_so(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    prompt = "stream half\nsleep 600"
    for _ in range(2):
        async for event in session.send(prompt, prompt_id="m1"):
            if isinstance(event, TextDelta):
                break
        await session.cancel()
    first, note, again = await prompts_of(store, session.thread_id)
    assert (first, again) == (prompt, prompt)
    assert "was stopped while it worked on this prompt, which is asked again" in note
    told = [(turn.prompt_id, turn.status, turn.reason) for turn in (await session.trajectory()).exchanges]
    assert told == [("m1", "interrupted", "cancelled")] * 2


async def test_an_id_that_stands_for_other_words_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    with pytest.raises(ProviderError):
        await session.send("fail error no such model", prompt_id="m1")
    head = await store.head(session.thread_id)
    with pytest.raises(InvalidInput, match="'m1' is on record with other words: 'fail error no such model', and not"):
        await session.send("say one", prompt_id="m1")
    assert await store.head(session.thread_id) == head


async def test_an_id_is_known_to_the_built_in_agent_too(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path), store).start_session()
    await session.send("say one", prompt_id="m1")
    agent = Agent(ScriptedModel(["Never.", "Two."]), checkpointer=store)
    assert (await agent.run("say one", thread_id=session.thread_id, prompt_id="m1")).output == "one"
    await agent.run("Go on.", thread_id=session.thread_id, prompt_id="m2")
    again = await session.send("Go on.", prompt_id="m2")
    assert (again.output, again.provider) == ("Two.", "clew")
