"""Which thread a resume goes on with, and what is left behind if there is none."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clew import Thread
from clew.agent import Agent, Event, Run, RunResult, RunStarted
from clew.checkpointers import FileCheckpointer, HeadQuery, MemoryCheckpointer
from clew.errors import ThreadBusy, ThreadNotFound, UsageError
from clew.testing import Response, ScriptedModel, call
from clew.tools import ToolContext, tool

pytestmark = pytest.mark.anyio


def _agent(store: MemoryCheckpointer | None, *script: Response, name: str = "support") -> Agent:
    return Agent(ScriptedModel(list(script or ("Yes.",) * 5)), name=name, checkpointer=store)


async def _stopped(store: MemoryCheckpointer, thread_id: str, name: str = "support") -> None:
    """A thread whose run has failed."""
    with suppress(RuntimeError):
        await _agent(store, RuntimeError("down"), name=name).run("Go.", thread_id=thread_id)


def _failing_once(store: MemoryCheckpointer, name: str) -> Agent:
    answers: list[Response] = [RuntimeError("down"), "Done."]
    return Agent(ScriptedModel(lambda asked: answers.pop(0)), name=name, checkpointer=store)


async def _threads(store: MemoryCheckpointer) -> list[str]:
    return [head.thread_id async for head in store.heads(HeadQuery())]


async def _first(run: Run[RunResult]) -> Event:
    event = await anext(run)
    await run
    return event


async def test_an_agent_resumes_its_own_last_thread_and_never_that_of_another_of_its_name(
    store: MemoryCheckpointer,
) -> None:
    ada, bob = _agent(store), _agent(store)
    await ada.run("I am Ada.", thread_id="ada")
    await bob.run("I am Bob.", thread_id="bob")
    assert (await ada.resume("Who am I?")).thread_id == "ada"
    assert (await bob.resume("Who am I?")).thread_id == "bob"


async def test_an_agent_without_a_name_resumes_what_it_just_ran() -> None:
    agent = _agent(None, name="")
    first = await agent.run("First.")
    assert (await agent.resume("Second.")).thread_id == first.thread_id


async def test_a_run_that_failed_is_what_its_agent_resumes(store: MemoryCheckpointer) -> None:
    agent = _failing_once(store, name="")
    with pytest.raises(RuntimeError):
        await agent.run("Go.", thread_id="t")
    assert (await agent.resume()).output == "Done."


async def test_a_run_that_did_not_get_its_thread_is_not_the_last_one(store: MemoryCheckpointer) -> None:
    agent = _agent(store)
    await agent.run("Mine.", thread_id="mine")
    async with Thread.open(store, "another's"):
        with pytest.raises(ThreadBusy):
            await agent.run("Go.", thread_id="another's")
    assert (await agent.resume("And?")).thread_id == "mine"


async def test_what_sessions_ran_counts_and_goes_on_in_their_folder(store: MemoryCheckpointer, tmp_path: Path) -> None:
    @tool(effect="none")
    async def where(ctx: ToolContext) -> str:
        return str(ctx.workspace)

    model = ScriptedModel(["Hi.", call("where"), "There.", "Yes.", "No."])
    agent = Agent(model, tools=[where], checkpointer=store)
    async with agent.session(workspace=tmp_path / "out") as session:
        await session.run("First.")
        assert (await agent.resume("Where?")).thread_id == session.thread_id
    assert str(tmp_path / "out") in str(model.requests[-1].messages[-1])
    started = agent.start_session()
    await started.send("Hello.")
    assert (await agent.resume("And?")).thread_id == started.thread_id


async def test_what_a_resumed_session_ran_counts_and_goes_on_in_the_store_of_its_handle(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    async with Agent(ScriptedModel(["Hi."]), checkpointer=url) as first:
        session = first.start_session()
        await session.send("First.")
        handle = session.handle(hints=True)
    async with Agent(ScriptedModel(["Hi.", "Yes.", "No."])) as agent:
        await agent.resume_session(handle, trust=True).send("Second.")
        assert (await agent.resume("Third.")).thread_id == session.thread_id


async def test_a_sub_agents_thread_is_never_resumed_by_its_agent(store: MemoryCheckpointer) -> None:
    finder = Agent(ScriptedModel(["Found.", "Yes."]), name="finder", checkpointer=store)
    boss = Agent(ScriptedModel([call("finder", task="It."), "Done.", "Yes."]), tools=[finder], checkpointer=store)
    result = await boss.run("Find it.")
    with pytest.raises(UsageError, match="no thread in this store"):
        await finder.resume("More?")
    assert (await boss.resume("More?")).thread_id == result.thread_id


async def test_an_agents_last_thread_that_was_deleted_is_told_and_no_other_is_taken(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    await _agent(store).run("Go.", thread_id="another's")
    agent = _agent(store)
    async with agent.session(workspace=tmp_path, resume=True) as session:
        await session.run("Do it.")
    with pytest.raises(ThreadNotFound, match="deleted since"):
        await agent.resume("And?")


@pytest.mark.parametrize("how", ["run", "session", "resume", "answered before"])
async def test_the_first_event_of_a_run_says_its_thread(how: str, store: MemoryCheckpointer, tmp_path: Path) -> None:
    agent = _agent(store)
    await agent.run("Go.", thread_id="t")
    task = agent.session(workspace=tmp_path, resume=True)
    if how == "answered before":
        await task.run("Do it.")
        task = agent.session(workspace=tmp_path, resume=True)
    run = {
        "run": lambda: agent.run("Go.", thread_id="t"),
        "session": lambda: agent.start_session(thread_id="t").send("Go."),
        "resume": lambda: agent.resume("Go."),
        "answered before": lambda: task.run("Do it."),
    }[how]()
    assert await _first(run) == RunStarted((await run).thread_id)


async def test_a_fresh_agent_takes_the_newest_thread_of_its_name_and_says_which(
    store: MemoryCheckpointer, caplog: pytest.LogCaptureFixture
) -> None:
    for thread_id in ("old", "new"):
        await _agent(store).run("Go.", thread_id=thread_id)
    await _agent(store, name="other").run("Go.", thread_id="other's")
    with caplog.at_level(logging.INFO, "clew.agent"):
        assert await _first(_agent(store).resume("And?")) == RunStarted("new")
    assert "agent 'support': resumes its newest thread, 'new' (done)" in caplog.messages


@pytest.mark.parametrize("unfinished", ["old", "new"])
async def test_one_unfinished_thread_changes_nothing_about_which_is_the_newest(
    unfinished: str, store: MemoryCheckpointer
) -> None:
    for thread_id in ("old", "new"):
        if thread_id == unfinished:
            await _stopped(store, thread_id)
        else:
            await _agent(store).run("Go.", thread_id=thread_id)
    await _stopped(store, "another agent's", name="other")
    assert (await _agent(store).resume("And?")).thread_id == "new"


async def test_a_fresh_agent_with_several_unfinished_threads_of_its_name_lists_them_and_runs_nothing(
    store: MemoryCheckpointer,
) -> None:
    for thread_id in ("user-1", "user-2"):
        await _stopped(store, thread_id)
    await _agent(store).run("Go.", thread_id="finished")
    model = ScriptedModel(["Yes."])
    async with Thread.open(store, "user-2"):
        with pytest.raises(UsageError, match=r"thread_id=") as raised:
            await Agent(model, name="support", checkpointer=store).resume("And?")
    told = str(raised.value)
    assert told.startswith("2 threads of the agent 'support' are unfinished")
    assert "'user-1': failed, last changed 0s ago" in told
    assert "'user-2': running, held by process " in told
    assert "finished'" not in told
    assert model.calls == 0


_KILLED = """
import asyncio, os, sys
from clew.agent import Agent
from clew.testing import ScriptedModel

def die(request):
    os._exit(1)

agent = Agent(ScriptedModel(die), name="support", checkpointer=sys.argv[1])
async def main():
    await agent.run("Go.", thread_id=sys.argv[2])

asyncio.run(main())
"""


async def test_a_run_that_was_killed_is_unfinished(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    for thread_id in ("user-1", "user-2"):
        subprocess.run([sys.executable, "-c", _KILLED, url, thread_id], check=False)
    async with Agent(ScriptedModel(["Done."]), name="support", checkpointer=url) as agent:
        with pytest.raises(UsageError, match=r"(?s)'user-2': interrupted, last.*'user-1': interrupted, last"):
            await agent.resume()
        await agent.run("Go.", thread_id="user-1")
    async with Agent(ScriptedModel(["Done."]), name="support", checkpointer=url) as agent:
        assert (await agent.resume(thread_id="user-2")).output == "Done."


async def test_many_unfinished_threads_are_counted_and_the_newest_listed(store: MemoryCheckpointer) -> None:
    for number in range(12):
        await _stopped(store, f"user-{number}")
    with pytest.raises(UsageError, match=r"(?s)12 threads .*and 2 more") as raised:
        await _agent(store).resume()
    assert "user-11" in str(raised.value)
    assert "'user-1'" not in str(raised.value)


async def test_an_agent_that_ran_one_of_several_unfinished_threads_resumes_that_one(store: MemoryCheckpointer) -> None:
    agent = _failing_once(store, name="support")
    with pytest.raises(RuntimeError):
        await agent.run("Go.", thread_id="mine")
    await _stopped(store, "another's")
    assert (await agent.resume()).thread_id == "mine"


async def test_the_newest_thread_of_a_name_may_be_a_fork(store: MemoryCheckpointer) -> None:
    agent = _agent(store)
    await agent.run("First.", thread_id="t")
    async with Thread.open(store, "t") as thread:
        await thread.fork("of mine")
    await _agent(store).run("Second.", thread_id="of mine")
    assert (await _agent(store).resume("Third.")).thread_id == "of mine"
    assert (await agent.resume("Second.")).thread_id == "t", "the agent object itself ran no fork"


async def test_a_fresh_agent_without_a_name_is_told_what_to_say(store: MemoryCheckpointer) -> None:
    with pytest.raises(UsageError, match=r"thread_id=….*name=…"):
        await _agent(store, name="").resume("And?")
    with pytest.raises(UsageError, match=r"'nobody' has no thread"):
        await _agent(store, name="nobody").resume("And?")


async def test_resuming_a_session_that_the_store_does_not_have_is_an_error_and_leaves_nothing_behind(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    agent = Agent(ScriptedModel(["Hi."]), checkpointer=store, workspace=tmp_path / "folder")
    handle = _agent(None).start_session(thread_id="a stranger").resume_handle
    for unknown in ("a stranger", handle):
        for run in (agent.resume_session(unknown).send("Go."), agent.resume_session(unknown).resume()):
            with pytest.raises(ThreadNotFound, match=r"'a stranger' in this store.*checkpointer=…"):
                await run
    with pytest.raises(ThreadNotFound, match="a stranger"):
        await agent.resume("Go.", thread_id="a stranger")
    assert await _threads(store) == []
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("store", ["the default", "a file", "a folder"])
async def test_a_resume_for_which_the_store_was_forgotten_names_the_thread_and_makes_no_store(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLEW_STORE", raising=False)
    given: dict[str, Any] = {
        "the default": ...,
        "a file": f"sqlite:///{tmp_path}/x.db",
        "a folder": FileCheckpointer(tmp_path / "x"),
    }
    async with Agent(ScriptedModel(["Hi."]), name="ada", checkpointer=given[store]) as agent:
        with pytest.raises(ThreadNotFound, match=r"no thread 'trip' in (the default|the|this) store.*checkpointer=…"):
            await agent.resume_session("trip").send("Go.")
        with pytest.raises(ThreadNotFound):
            await agent.resume("Go.", thread_id="trip")
        with pytest.raises(UsageError, match="has no thread"):
            await agent.resume("Go.")
    assert list(tmp_path.iterdir()) == []


async def test_a_stores_password_is_not_told_with_a_thread_that_it_does_not_have(tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(["Hi."]), checkpointer=f"file:{tmp_path}/x")
    with pytest.raises(ThreadNotFound, match=f"the store file:{tmp_path}/x"):
        await agent.resume(thread_id="t")
    from clew.agent.stores import Store

    assert Store("redis://user:secret@host/0")._words == "the store redis://host/0"


async def test_a_handle_kept_before_the_first_prompt_leads_back_once_that_is_on_record(
    store: MemoryCheckpointer,
) -> None:
    session = _agent(store).start_session()
    handle = session.resume_handle
    with pytest.raises(ThreadNotFound):
        await _agent(store).resume_session(handle).send("Go.")
    begun = _agent(store).start_session(thread_id=session.thread_id)
    assert (await begun.send("Go.")).thread_id == session.thread_id
    assert (await _agent(store).resume_session(handle).send("And?")).resumed_from == 1


async def test_resuming_a_session_that_was_never_asked_anything_makes_no_thread(store: MemoryCheckpointer) -> None:
    agent = _agent(store)
    for session in (agent.start_session(), agent.session(thread_id="new")):
        with pytest.raises(ThreadNotFound):
            await session.resume()
    assert await _threads(store) == []


@pytest.mark.parametrize("ask", [Agent.trajectory, Agent.questions], ids=["trajectory", "questions"])
async def test_asking_about_a_thread_makes_no_store(ask: Any, tmp_path: Path) -> None:
    async with Agent(ScriptedModel(["Yes."]), checkpointer=f"sqlite:///{tmp_path}/new/clew.db") as agent:
        with pytest.raises(ThreadNotFound, match=r"no thread 'trip' in the store sqlite:.*clew\.db"):
            await ask(agent, "trip")
    assert not list(tmp_path.iterdir())
