"""What the agent of a thread was made with, on record for whoever resumes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clew import Thread
from clew.agent import Agent, Budget
from clew.agent.settings import Setup, keep_setup, kept_setup, setup_of
from clew.checkpointers import MemoryCheckpointer
from clew.errors import Corrupt
from clew.log import StateSet, ThreadStarted
from clew.testing import ScriptedModel
from clew.tools import read_file, tool

pytestmark = pytest.mark.anyio

SETUP = Setup(model="openai:gpt-5", tools=("shop:order",), folder="/home/ada", budget=Budget(usd=2), max_turns=7)


def make_agent(store: MemoryCheckpointer) -> Agent:
    return Agent(ScriptedModel(["One.", "Two.", "Three."]), checkpointer=store)


async def test_it_is_there_after_runs_rewinds_and_in_forks(store: MemoryCheckpointer) -> None:
    await keep_setup(store, "t", SETUP)
    await make_agent(store).run("First.", thread_id="t")
    await make_agent(store).run("Second.", thread_id="t")
    async with Thread.open(store, "t") as thread:
        await thread.fork("f", at_turn=1)
        await thread.rewind(0)
    for name in ("t", "f"):
        assert setup_of(await Thread.load(store, name)) == SETUP


async def test_a_rewind_brings_back_the_one_of_then(store: MemoryCheckpointer) -> None:
    await keep_setup(store, "t", SETUP)
    await make_agent(store).run("First.", thread_id="t")
    await keep_setup(store, "t", Setup(model="openai:gpt-5-mini"))
    await make_agent(store).run("Second.", thread_id="t")
    assert setup_of(await Thread.load(store, "t")).model == "openai:gpt-5-mini"
    assert setup_of(await Thread.load(store, "t", at_turn=0)) == SETUP


async def test_tools_do_not_see_it(store: MemoryCheckpointer) -> None:
    await keep_setup(store, "t", SETUP)
    result = await make_agent(store).run("First.", thread_id="t")
    assert (result.drift, result.resumed_from, result.output) == ({}, None, "One.")


async def test_of_a_thread_that_a_program_made_it_says_what_the_record_tells(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    @tool
    async def order() -> str:
        return "ordered"

    model = ScriptedModel(["One."], name="openai:gpt-5")
    agent = Agent(
        model,
        name="ada",
        tools=[order, read_file],
        workspace=tmp_path,
        checkpointer=store,
        max_turns=9,
        budget=Budget(tokens=500),
        system_prompt="Be brief.",
    )
    await agent.run("First.", thread_id="t")
    state = await Thread.load(store, "t")
    assert kept_setup(state) is None
    assert setup_of(state) == Setup(
        model="openai:gpt-5",
        name="ada",
        system="Be brief.",
        tools=("clew.tools:read_file",),
        max_turns=9,
        budget=Budget(tokens=500),
    )


async def test_whoever_worked_on_it_last_is_meant(store: MemoryCheckpointer) -> None:
    await keep_setup(store, "t", SETUP)
    await make_agent(store).run("First.", thread_id="t")
    limits = {"provider": "codex", "cwd": "/srv", "permissions": "full"}
    async with Thread.open(store, "t") as thread:
        await thread.append(ThreadStarted("codex", "", limits=limits))
    found = setup_of(await Thread.load(store, "t"))
    assert (found.provider, found.model, found.tools, found.max_turns) == ("codex", "", (), None)
    assert (found.folder, found.permissions, found.budget) == ("/srv", "full", SETUP.budget)
    async with Thread.open(store, "t") as thread:
        await thread.append(ThreadStarted("", "openai:gpt-5", limits={"max_turns": 50}))
    assert setup_of(await Thread.load(store, "t")) == SETUP


async def test_one_that_cannot_be_read_is_corrupt(store: MemoryCheckpointer) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(StateSet("clew:setup", {"model": 5}))
    with pytest.raises(Corrupt, match="started with"):
        setup_of(await Thread.load(store, "t"))


@pytest.mark.parametrize("limits", [{"max_turns": [1]}, {"max_turns": True}, {"usd": "2"}, {"tokens": -1}])
async def test_recorded_limits_that_no_agent_can_have_are_corrupt(store: MemoryCheckpointer, limits: Any) -> None:
    async with Thread.open(store, "t") as thread:
        await thread.append(ThreadStarted("ada", "openai:gpt-5", limits=limits))
    with pytest.raises(Corrupt, match="limits that this thread has on record"):
        setup_of(await Thread.load(store, "t"))
