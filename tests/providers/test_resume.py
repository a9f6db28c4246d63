"""Which thread an agent of a provider resumes, and what is left behind if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.agent import RunStarted
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput, ProviderError, ThreadNotFound, UsageError
from clew.providers import Place, ProviderAgent
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

pytestmark = pytest.mark.anyio


async def _stopped(place: Place, store: MemoryCheckpointer, thread_id: str) -> None:
    with pytest.raises(ProviderError):
        await toy_agent(place, store, name="support").run("fail other down", thread_id=thread_id)


async def test_a_providers_agent_resumes_its_own_last_thread_and_never_that_of_another_of_its_name(
    tmp_path: Path,
) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    ada, bob = (toy_agent(place, store, name="support") for _ in range(2))
    await ada.run("say I am Ada", thread_id="ada")
    await bob.run("say I am Bob", thread_id="bob")
    assert "I am Ada" in (await ada.resume("echo")).output
    assert "I am Bob" in (await bob.resume("echo")).output


async def test_a_providers_agent_without_a_name_resumes_what_it_just_ran(tmp_path: Path) -> None:
    agent = toy_agent(toy_place(tmp_path), None)
    first = await agent.start_session().send("say one")
    assert (await agent.resume("echo")).thread_id == first.thread_id


async def test_a_providers_agent_goes_on_in_the_folder_and_store_of_what_it_resumed(tmp_path: Path) -> None:
    place, elsewhere = toy_place(tmp_path), toy_place(tmp_path / "elsewhere")
    url = f"sqlite:///{tmp_path}/clew.db"
    async with toy_agent(Place(elsewhere.cwd, place.env), url) as first:
        session = first.start_session()
        await session.send("say one")
        handle = session.handle(hints=True)
    async with ProviderAgent(provider="toy", env=place.env, cwd=place.cwd) as agent:
        await agent.resume_session(handle, trust=True).send("say two")
        assert (await agent.resume("echo")).thread_id == session.thread_id
        assert agent._worked_on.ran is not None
        assert agent._worked_on.ran.settings.place.cwd == elsewhere.cwd


async def test_the_first_event_of_a_prompt_to_a_provider_says_its_thread(tmp_path: Path) -> None:
    agent = toy_agent(toy_place(tmp_path), MemoryCheckpointer())
    for run in (agent.run("say one", thread_id="t"), agent.resume("say two"), agent.start_session().send("say three")):
        events = [event async for event in run]
        assert events[0] == RunStarted((await run).thread_id)
        assert sum(isinstance(event, RunStarted) for event in events) == 1


async def test_a_fresh_providers_agent_takes_the_newest_thread_of_its_name_or_lists_the_unfinished(
    tmp_path: Path,
) -> None:
    place, store = toy_place(tmp_path), MemoryCheckpointer()
    for thread_id in ("old", "new"):
        await toy_agent(place, store, name="support").run("say one", thread_id=thread_id)
    await _stopped(place, store, "user-1")
    assert (await toy_agent(place, store, name="support").resume("echo")).thread_id == "user-1"
    for thread_id in ("user-2", "user-3"):
        await _stopped(place, store, thread_id)
    with pytest.raises(UsageError, match=r"(?s)2 threads of the agent 'support'.*'user-3': failed.*'user-2': failed"):
        await toy_agent(place, store, name="support").resume("echo")


async def test_resuming_what_a_providers_store_does_not_have_is_an_error_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    place, url = toy_place(tmp_path / "machine"), f"sqlite:///{tmp_path}/clew.db"
    before = sorted(tmp_path.rglob("*"))
    async with toy_agent(place, url, name="ada") as agent:
        for run in (
            agent.resume_session("a stranger").send("echo"),
            agent.resume_session("a stranger").send("echo", prompt_id="p"),
            agent.resume_session("a stranger").resume(),
            agent.start_session(thread_id="a stranger").resume(),
            agent.resume(thread_id="a stranger"),
        ):
            with pytest.raises(ThreadNotFound, match=r"'a stranger'.*checkpointer=…"):
                await run
        with pytest.raises(UsageError, match="'ada' has no thread"):
            await agent.resume()
        with pytest.raises(InvalidInput, match="prompt"):
            agent.resume(" ")
    assert sorted(tmp_path.rglob("*")) == before
