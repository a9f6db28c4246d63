"""Limits: turns and the warnings before, seconds of work, timeouts, and what is refused from the start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew import Thread
from clew.agent import Agent, Budget
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput, ThreadBusy, Unavailable, UsageError
from clew.log import MessageAdded, Spend
from clew.messages import plain_text, user
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.tools import tool
from tests.clock import Clock
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


@tool(effect="none")
async def look() -> str:
    return "row"


def _looking(request: ModelRequest) -> Response:
    """Looks until it is told to come to an end."""
    last = plain_text(request.messages[-1])
    return "Done." if "last turn" in last else call("look")


async def test_the_model_is_told_when_its_turns_run_out(store: MemoryCheckpointer) -> None:
    model = ScriptedModel(_looking)
    agent = Agent(model, tools=[look], checkpointer=store, max_turns=6, warn_turns=3)
    result = await agent.run("Look around.", thread_id="t")
    assert (result.status, result.output, result.turns) == ("done", "Done.", 6)
    told = [plain_text(message) for message in model.requests[-1].messages if "[clew]" in plain_text(message)]
    assert told == [
        "[clew] 3 turns are left. Bring the task to its end within them.",
        "[clew] This is the last turn: give your answer now, with what you have.",
    ]


@pytest.mark.parametrize("limits", [{"warn_turns": 0, "max_turns": 6}, {"warn_turns": 5, "max_turns": 5}])
async def test_nothing_is_told_where_it_is_not_wanted_or_too_early(
    limits: dict[str, Any], store: MemoryCheckpointer
) -> None:
    model = ScriptedModel(_looking)
    result = await Agent(model, tools=[look], checkpointer=store, **limits).run("Look.", thread_id="t")
    assert result.status == "interrupted"
    assert not any("[clew]" in plain_text(message) for message in model.requests[-1].messages)


async def test_a_budget_of_seconds_counts_the_work_of_all_runs(store: MemoryCheckpointer, clock: Clock) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("Look.")), Spend(cost_usd=0.0, seconds=1800))

    @tool(effect="none")
    async def slow() -> str:
        clock.advance(1800)
        return "row"

    agent = Agent(ScriptedModel([call("slow"), "Done."]), tools=[slow], checkpointer=store, budget=Budget(seconds=3600))
    result = await agent.run("Look.", thread_id="t")
    assert (result.status, result.reason) == ("interrupted", "budget: 3600 of 3600 seconds")
    richer = Agent(
        ScriptedModel([call("slow"), "Done."]), tools=[slow], checkpointer=store, budget=Budget(seconds=7200)
    )
    assert (await richer.resume(thread_id="t")).output == "Done."
    assert 3600 < (await Thread.load(store, "t")).seconds < 3600 + PATIENCE


async def test_time_between_two_runs_is_no_work(store: MemoryCheckpointer, clock: Clock) -> None:
    agent = Agent(ScriptedModel(["One.", "Two."]), checkpointer=store)
    await agent.run("First.", thread_id="t")
    clock.advance(3600)
    await agent.run("Second.", thread_id="t")
    assert (await Thread.load(store, "t")).seconds < PATIENCE


async def test_a_run_that_takes_too_long_is_interrupted_and_can_be_resumed(
    store: MemoryCheckpointer, clock: Clock
) -> None:
    @tool(effect="idempotent")
    async def slow() -> str:
        if slow_first.pop():
            clock.advance(600)
            await asyncio.Event().wait()
        return "row"

    slow_first = [False, True]
    agent = Agent(ScriptedModel([call("slow"), "Done."]), tools=[slow], checkpointer=store)
    stopped = await agent.run("Go.", thread_id="t", timeout=600)
    assert (stopped.status, stopped.reason, stopped.output) == ("interrupted", "timeout: 600 s", None)
    assert (await agent.resume(thread_id="t", timeout=600)).output == "Done."


@pytest.mark.parametrize("silent", ["head", "read"])
async def test_a_run_ends_at_its_timeout_although_the_store_does_not_answer(
    silent: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(*args: Any, **kwargs: Any) -> None:
        clock.advance(5)
        await asyncio.Event().wait()

    store = MemoryCheckpointer()
    agent = Agent(ScriptedModel(["One.", "Two."]), checkpointer=store)
    await agent.run("Go.", thread_id="t")
    monkeypatch.setattr(store, silent, say_nothing)
    with pytest.raises(Unavailable, match="timeout of the run was over before the store had opened thread 't'"):
        await agent.run("Go on.", thread_id="t", timeout=5)


async def test_the_timeout_of_a_run_includes_its_wait_for_another_run_of_the_same_agent(clock: Clock) -> None:
    is_asked, goes_on = asyncio.Event(), asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        is_asked.set()
        await goes_on.wait()
        return "Done."

    agent = Agent(ScriptedModel(answer), checkpointer=None)
    first = asyncio.ensure_future(agent.run("Go.", thread_id="t")._finish())
    await is_asked.wait()
    second = asyncio.ensure_future(agent.run("Go on.", thread_id="t", timeout=600)._finish())
    for _ in range(100):
        clock.advance(600)
        await asyncio.sleep(0)
    assert second.done()
    with pytest.raises(ThreadBusy, match="another run of the same agent"):
        await second
    goes_on.set()
    assert (await first).output == "Done."
    assert (await agent.run("Go on.", thread_id="t", timeout=600)).output == "Done."


@pytest.mark.parametrize(
    "options",
    [
        {"max_turns": 0},
        {"max_turns": "3"},
        {"max_turns": True},
        {"warn_turns": -1},
        {"max_tokens": 0},
        {"context_window": 0},
        {"compact_at": 1.5},
        {"compact_at": "half"},
        {"on_overflow": "ignore"},
        {"snapshot_every": 0},
        {"durability": "never"},
        {"name": 7},
        {"name": "a\0b"},
        {"system_prompt": None},
        {"tools": len},
        {"tools": None},
        {"workspace": 7},
        {"data_dir": ""},
        {"checkpointer": 7},
        {"budget": 2},
        {"options": ["--fast"]},
        {"prices": {"m": 2}},
        {"output": "a dict"},
        {"redact": 7},
        {"redact": ["("]},
        {"handle_signals": "yes"},
        {"restore_files": "yes"},
        {"takeover": 1},
        {"allow_repeats": None},
    ],
)
def test_an_argument_that_cannot_be_is_refused_at_construction(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Agent(ScriptedModel(["Hi."]), **options)


def test_a_budget_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="usd is a number"):
        Budget(usd="2")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"seconds": 0}, {"tokens": -1}, {"usd": float("nan")}])
def test_a_budget_that_allows_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="allows nothing"):
        Budget(**options)


@pytest.mark.parametrize("prompt", ["", "  \n", None, 7])
async def test_a_run_without_a_prompt_is_told_to_resume(prompt: Any, store: MemoryCheckpointer) -> None:
    with pytest.raises(InvalidInput, match=r"agent\.resume"):
        Agent(ScriptedModel(["Hi."]), checkpointer=store).run(prompt)


async def test_a_thread_that_was_never_asked_anything_cannot_be_resumed_without_a_prompt(
    store: MemoryCheckpointer,
) -> None:
    async with Thread.open(store, "t"):
        pass
    agent = Agent(ScriptedModel(["Hi."]), checkpointer=store)
    with pytest.raises(UsageError, match="no prompt to go on from"):
        await agent.resume(thread_id="t")
    assert (await agent.resume("Hello.", thread_id="t")).output == "Hi."


async def test_durability_exit_refuses_once_tools_unless_repeats_are_accepted(store: MemoryCheckpointer) -> None:
    @tool(effect="once")
    async def charge() -> str:
        return "charged"

    with pytest.raises(InvalidInput, match="allow_repeats=True"):
        Agent(ScriptedModel(["Hi."]), tools=[charge], checkpointer=store, durability="exit")
    agent = Agent(
        ScriptedModel([call("charge"), "Done."]),
        tools=[charge],
        checkpointer=store,
        durability="exit",
        allow_repeats=True,
    )
    assert (await agent.run("Go.", thread_id="t")).output == "Done."
    assert (await Thread.load(store, "t")).turns == 2


async def test_a_redacted_prompt_is_not_asked_twice_after_a_failure(store: MemoryCheckpointer) -> None:
    def agent(*script: Response) -> Agent:
        return Agent(ScriptedModel(list(script)), tools=[look], checkpointer=store, redact=[r"sk-\w+"])

    with pytest.raises(RuntimeError):
        await agent(call("look"), RuntimeError("down")).run("Use sk-123.", thread_id="t")
    assert (await agent(call("look"), "Done.").run("Use sk-123.", thread_id="t")).output == "Done."
    prompts = [plain_text(message) for message in (await Thread.load(store, "t")).history if plain_text(message)]
    assert prompts == ["Use [redacted].", "Done."]
