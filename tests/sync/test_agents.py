"""Agents without an event loop of one's own: in scripts, in threads, in notebooks, in tools."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import clew
from clew.agent import RunStarted, ToolFinished, ToolStarted, TurnStarted
from clew.errors import ThreadNotFound, UsageError
from clew.sync import (
    Agent,
    Checkpointer,
    MemoryCheckpointer,
    Run,
    RunResult,
    Session,
    Thread,
    ToolContext,
    open_checkpointer,
    tool,
)
from clew.testing import ScriptedModel, call, turns_in
from tests.limits import PATIENCE
from tests.providers.toy import toy_place
from tests.providers.toys import with_toys


@pytest.fixture(params=["memory://", "sqlite:///{}/c.db", "file://{}/threads"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Checkpointer]:
    with open_checkpointer(request.param.format(tmp_path)) as opened:
        yield opened


@pytest.fixture
def memory() -> Iterator[MemoryCheckpointer]:
    with MemoryCheckpointer() as opened:
        yield opened


@tool
def greet(name: str) -> str:
    return f"hello {name}"


@tool(effect="idempotent")
async def wait() -> None:
    await asyncio.sleep(60)


def test_a_prompt_with_an_id_is_asked_once_and_equal_words_with_another_id_are_asked(
    store: Checkpointer, tmp_path: Path
) -> None:
    with_toys()
    place = toy_place(tmp_path)
    model = ScriptedModel(["Chapter 1.", "Chapter 2."])
    with (
        Agent(model, checkpointer=store) as own,
        Agent(provider="toy", cwd=place.cwd, env=place.env, checkpointer=store) as outside,
    ):
        asked = [("m1", "Chapter 1."), ("m2", "Chapter 2."), ("m1", "Chapter 1.")]
        assert [own.run("Continue.", thread_id="t", prompt_id=prompt_id).output for prompt_id, _ in asked] == [
            expected for _, expected in asked
        ]
        session = outside.start_session()
        first, second, again = (session.send("echo", prompt_id=prompt_id) for prompt_id, _ in asked)
        assert (first.output != second.output, again.output, again.cost) == (True, first.output, 0.0)
        assert [turn.prompt_id for turn in session.trajectory().exchanges] == ["m1", "m2"]
    assert model.calls == 2


def test_an_agent_runs_in_a_script_without_an_event_loop(store: Checkpointer) -> None:
    @tool
    async def greet_later(name: str, ctx: ToolContext) -> str:
        await asyncio.sleep(0)
        return f"hello {name} of {ctx.thread_id}"

    model = ScriptedModel([call("greet", name="Ada") + call("greet_later", name="Bob"), "Both greeted."])
    with Agent(model, name="host", tools=[greet, greet_later], checkpointer=store) as agent:
        assert isinstance(agent, Agent)
        result = agent.run("Greet them.", thread_id="party")
        assert isinstance(result, RunResult)
        assert (agent.name, result.output, result.status, result.turns) == ("host", "Both greeted.", "done", 2)
    said = str(Thread.load(store, "party").messages)
    assert "hello Ada" in said
    assert "hello Bob of party" in said


def test_the_same_script_run_again_goes_on_in_the_same_store(tmp_path: Path) -> None:
    for turns in (1, 2):
        with Agent(ScriptedModel(["One.", "Two."]), checkpointer=f"sqlite:///{tmp_path}/c.db") as agent:
            assert agent.run("Count.", thread_id="t").turns == turns


def test_events_come_as_they_happen_and_the_result_after_them(memory: Checkpointer) -> None:
    with Agent(ScriptedModel([call("greet", name="Ada"), "Done."]), tools=[greet], checkpointer=memory) as agent:
        run = agent.stream("Go.")
        assert isinstance(run, Run)
        kinds = [type(event) for event in run if isinstance(event, TurnStarted | ToolStarted | ToolFinished)]
        assert kinds == [TurnStarted, ToolStarted, ToolFinished, TurnStarted]
        assert run.result.output == "Done."
        assert run.result is run.result
        assert list(run) == []


def test_a_stream_is_lazy_and_has_no_result_before_its_last_event(memory: Checkpointer) -> None:
    go_on = threading.Event()

    @tool
    def hold() -> None:
        go_on.wait(PATIENCE)

    model = ScriptedModel([call("hold"), "Done."])
    with Agent(model, tools=[hold], checkpointer=memory) as agent:
        run = agent.stream("Go.", thread_id="t")
        assert memory.head("t") is None
        with pytest.raises(UsageError, match="has not begun"):
            _ = run.result
        next(run)
        with pytest.raises(UsageError, match="has not finished"):
            _ = run.result
        go_on.set()
        for _event in run:
            pass
        assert run.result.output == "Done."
        assert model.calls == 2


def test_a_stream_without_a_prompt_goes_on_with_the_answer(memory: Checkpointer) -> None:
    @tool
    def book(ctx: ToolContext) -> str:
        return str(ctx.blocking.interrupt("Which hotel?"))

    with Agent(ScriptedModel([call("book"), "Booked."]), tools=[book], checkpointer=memory) as agent:
        first = agent.start_session(thread_id="t")
        assert first.send("Book.").status == "waiting"
        run = agent.stream(thread_id="t", answer="the Ritz")
        assert next(run) == RunStarted("t")
        list(run)
        assert run.result.output == "Booked."
        with pytest.raises(UsageError, match="leave the prompt out"):
            agent.stream("Go.", answer="the Ritz")
        with pytest.raises(UsageError, match="leave the prompt out"):
            first.stream("Go.", answer="the Ritz")


def test_the_error_of_a_run_comes_each_time_its_result_is_asked_for(memory: Checkpointer) -> None:
    with Agent(ScriptedModel([ValueError("no model")]), checkpointer=memory) as agent:
        run = agent.stream("Go.", thread_id="t")
        with pytest.raises(ValueError, match="no model"):
            list(run)
        for _ in range(2):
            with pytest.raises(ValueError, match="no model"):
                _ = run.result
        with pytest.raises(ValueError, match="no model"):
            agent.run("Go.", thread_id="t")
        with pytest.raises(ThreadNotFound):
            agent.resume(thread_id="nope")


def test_a_run_that_nobody_used_says_that_nothing_happened(memory: Checkpointer) -> None:
    with Agent(ScriptedModel(["Done."]), checkpointer=memory) as agent:
        with pytest.warns(RuntimeWarning, match=r"nothing happened.*agent\.stream") as told:
            agent.stream("Go.", thread_id="t")
        assert told[0].filename == __file__


def test_sessions_block(store: Checkpointer, tmp_path: Path) -> None:
    model = ScriptedModel(["I will.", "staging-eu", "Bye."])
    with Agent(model, name="ops", checkpointer=store) as agent:
        session = agent.start_session()
        handle = session.resume_handle
        assert isinstance(session, Session)
        assert session.send("My target is staging-eu. Remember that.").output == "I will."
    with Agent(model, name="ops", checkpointer=store) as agent:
        assert agent.resume_session(handle).send("What is my target?").output == "staging-eu"
        assert agent.resume("Bye.").thread_id == session.thread_id
        with agent.session(resume=True, workspace=tmp_path / "out") as task:
            assert task.run("Say it.").output == "I will."
        assert store.head(task.thread_id) is None, "a task that is done is cleared"


def test_a_question_is_listed_and_answered(store: Checkpointer) -> None:
    @tool
    def book(city: str, ctx: ToolContext) -> str:
        return f"{city}: {ctx.blocking.interrupt('Which hotel?')}"

    model = ScriptedModel([call("book", city="Paris"), "Booked."])
    with Agent(model, tools=[book], checkpointer=store) as agent:
        assert agent.run("Book.", thread_id="t").status == "waiting"
        assert [question.text for question in agent.questions("t")] == ["Which hotel?"]
        assert agent.resume(thread_id="t", answer="the Ritz").output == "Booked."
    assert "Paris: the Ritz" in str(Thread.load(store, "t").messages)


def test_a_sync_tool_may_use_blocking_names_itself(memory: Checkpointer) -> None:
    helper = Agent(ScriptedModel(["42"]), checkpointer=memory)

    @tool
    def look(ctx: ToolContext) -> str:
        prompts = len(Thread.load(memory, ctx.thread_id).messages)
        return f"{prompts} messages, {helper.run('Think.').output}"

    with Agent(ScriptedModel([call("look"), "Done."]), tools=[look], checkpointer=memory) as agent:
        agent.run("Go.", thread_id="t")
    assert "2 messages, 42" in str(Thread.load(memory, "t").messages)


def test_an_async_tool_that_blocks_the_loop_is_told_so_and_nothing_hangs(memory: Checkpointer) -> None:
    @tool
    async def look() -> str:
        return str(Thread.load(memory, "t"))

    with Agent(ScriptedModel([call("look"), "Done."]), tools=[look], checkpointer=memory) as agent:
        assert agent.run("Go.", thread_id="t").output == "Done."
    assert "would wait for itself for ever" in str(Thread.load(memory, "t").messages)


@pytest.mark.parametrize("collection", [list, tuple, set, frozenset])
def test_an_agent_is_a_tool_of_another(collection: type, memory: Checkpointer) -> None:
    child = Agent(ScriptedModel(["It rains."]), name="weather", checkpointer=memory)
    model = ScriptedModel([call("weather", task="How is it outside?"), "Take an umbrella."])
    with Agent(model, tools=collection([child, greet]), checkpointer=memory) as agent:
        assert agent.run("What do I need?", thread_id="t").output == "Take an umbrella."
    assert "It rains." in str(Thread.load(memory, "t").messages)
    assert len(list(Thread.list(memory))) == 2


def test_a_blocking_agent_resumes_its_own_last_thread_and_never_that_of_another_of_its_name(
    memory: Checkpointer,
) -> None:
    agents = {name: Agent(ScriptedModel(["Hi."] * 3), name="support", checkpointer=memory) for name in ("ada", "bob")}
    for name, agent in agents.items():
        agent.run("Hello.", thread_id=name)
    for name, agent in agents.items():
        assert agent.resume("Who am I?").thread_id == name
    with pytest.raises(ThreadNotFound):
        agents["ada"].resume_session("a stranger").send("Hello.")


def test_a_run_that_is_closed_stops_and_says_so_on_record(store: Checkpointer) -> None:
    with Agent(ScriptedModel([call("wait"), "Done."]), tools=[wait], checkpointer=store) as agent:
        run = agent.stream("Go.", thread_id="t")
        assert next(run) == RunStarted("t")
        run.aclose()
        head = store.head("t")
        assert head is not None
        assert (head.status, head.lease) == ("interrupted", None)
        with pytest.raises(UsageError, match="stopped before its end"):
            _ = run.result


def test_a_run_dropped_after_its_first_event_gives_its_lease_back_and_the_next_one_works(store: Checkpointer) -> None:
    model = ScriptedModel(lambda asked: "Done." if turns_in(asked) else call("greet", name="Ada"), delay=0.05)
    with Agent(model, tools=[greet], checkpointer=store) as agent:
        for event in agent.stream("Go.", thread_id="t"):
            assert event == RunStarted("t")
            break
        assert agent.run("Go.", thread_id="t").output == "Done."
    head = store.head("t")
    assert head is not None
    assert (head.status, head.lease) == ("done", None)


def test_closing_an_agent_ends_what_other_threads_wait_for(memory: Checkpointer) -> None:
    started = threading.Event()

    @tool(effect="idempotent")
    async def begin() -> None:
        started.set()
        await asyncio.sleep(60)

    agent = Agent(ScriptedModel([call("begin"), "Done."]), tools=[begin], checkpointer=memory)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(agent.run, "Go.", thread_id="t")
        started.wait()
        agent.aclose()
        assert isinstance(waiting.exception(), asyncio.CancelledError)
    head = memory.head("t")
    assert head is not None
    assert (head.status, head.lease) == ("interrupted", None)


def test_it_works_where_a_loop_is_running_already_as_in_a_notebook(store: Checkpointer) -> None:
    async def cell() -> tuple[int, int]:
        with Agent(ScriptedModel([call("greet", name="Ada"), "Done."]), tools=[greet], checkpointer=store) as agent:
            run = agent.stream("Go.")
            events = [event for event in run if isinstance(event, ToolFinished)]
            await asyncio.sleep(0)
            return len(events), run.result.turns

    assert asyncio.run(cell()) == (1, 2)


def test_one_agent_serves_many_threads(store: Checkpointer) -> None:
    model = ScriptedModel([call("greet", name="Ada"), "Done."])
    with Agent(model, tools=[greet], checkpointer=store) as agent, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: agent.run("Go.", thread_id=f"t{number}"), range(16)))
    assert [(result.output, result.thread_id) for result in results] == [("Done.", f"t{n}") for n in range(16)]


def test_what_is_generic_can_be_written_with_its_type() -> None:
    assert Run[RunResult].__origin__ is Run  # type: ignore[attr-defined]


def test_an_async_agent_runs_the_same_by_name() -> None:
    async def main() -> None:
        async with clew.Agent(ScriptedModel(["Done."]), checkpointer=None) as agent:
            run = agent.run("Go.")
            assert (await run).output == "Done."
            assert run.result is await run
            streamed = agent.stream("Go.")
            assert len([event async for event in streamed]) > 0
            assert streamed.result.output == "Done."

    asyncio.run(main())


def test_a_providers_session_works_without_an_event_loop_of_ones_own(tmp_path: Path) -> None:
    with_toys()
    place = toy_place(tmp_path)
    agent = Agent(provider="toy", env=place.env, cwd=place.cwd, checkpointer=f"sqlite:///{tmp_path}/clew.db")
    session = agent.start_session()
    turn = session.send("stream a b\nsay a b ")
    assert (turn.output, turn.provider) == ("a b ", "toy")
    resumed = agent.resume_session(session.resume_handle)
    assert "assistant=a b" in resumed.send("echo").output
    assert resumed.trajectory().num_exchanges == 2
