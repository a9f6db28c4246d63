"""Threads for tests of the command and the inspector, made as users make them: `python -m tests.cli.samples URL`.

- `trip`: done, five turns of two prompts, files that change, spend that is known.
- `report`: its process was killed with SIGKILL inside a tool, so a call is in doubt.
- `visa`: waits for an answer.
- `trip-b`: a fork of `trip` at its second turn, which went on.
- `old`: failed, for want of a model.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from clew import Agent, Thread, ToolContext, open_checkpointer, tool
from clew.checkpointers import Checkpointer
from clew.errors import ModelRefused
from clew.log import Usage
from clew.models import Price
from clew.testing import ScriptedModel, call, reply, say, think
from clew.threads.ops.fork import fork

__all__ = ["make_samples"]

_PRICES = {"scripted": Price(3.0, 15.0)}
_USAGE = Usage(1200, 340, 200)


@tool(effect="none")
async def look_up(city: str) -> str:
    """What there is to see in a city."""
    return f"{city}: the river, the tower, the museum."


@tool(effect="idempotent")
async def write_plan(text: str, ctx: ToolContext) -> str:
    """Write the plan to a file."""
    assert ctx.workspace is not None
    (ctx.workspace / "plan.md").write_text(text)
    return "written"


@tool(effect="once")
async def send_mail(to: str) -> str:
    """Send the report."""
    os.kill(os.getpid(), signal.SIGKILL)
    return to


@tool(effect="steps")
async def ask_traveller(ctx: ToolContext) -> str:
    """Ask the traveller."""
    return str(await ctx.interrupt("Which passport do you travel with?"))


def make_samples(url: str, folder: Path) -> None:
    """Make them all in this store; the workspace of `trip` is below the folder."""
    root = Path(__file__).parents[2]
    for part in ("done", "killed"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.cli.samples", url, str(folder), part],
            cwd=root,
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr


async def _make(url: str, folder: Path, part: str) -> None:
    async with open_checkpointer(url) as store:
        if part == "killed":
            await _report(store)
        await _trip(store, folder)
        await _visa(store)
        await _old(store)


async def _trip(store: Checkpointer, folder: Path) -> None:
    plan = "# Paris\n\n1. The river\n"
    model = ScriptedModel(
        [
            reply(think("A city first."), say("I will look it up."), call("look_up", city="Paris"), usage=_USAGE),
            reply(call("write_plan", text=plan), usage=_USAGE),
            reply("The plan is in plan.md.", usage=_USAGE),
            reply(call("write_plan", text=plan + "2. The tower\n"), usage=_USAGE),
            reply("The tower is in it now.", usage=_USAGE),
        ]
    )
    agent = Agent(
        model,
        name="planner",
        tools=[look_up, write_plan],
        checkpointer=store,
        workspace=folder / "trip",
        prices=_PRICES,
        system_prompt="You plan journeys.",
    )
    await agent.run("Plan a trip to Paris.", thread_id="trip")
    await agent.run("Add the tower.", thread_id="trip")
    await fork(store, "trip", await Thread.load(store, "trip"), "trip-b", 2)
    other = Agent(
        ScriptedModel(lambda request: "This branch went another way."),
        name="planner",
        tools=[look_up, write_plan],
        checkpointer=store,
    )
    await other.run("Make it Rome.", thread_id="trip-b")


async def _report(store: Checkpointer) -> None:
    model = ScriptedModel(
        [reply(say("I send it now."), call("send_mail", to="ada@example.org"), usage=_USAGE), "Sent."]
    )
    agent = Agent(model, name="writer", tools=[send_mail], checkpointer=store, prices=_PRICES)
    await agent.run("Send the report to Ada.", thread_id="report")


async def _visa(store: Checkpointer) -> None:
    model = ScriptedModel([call("ask_traveller"), "Then you need no visa."])
    agent = Agent(model, name="planner", tools=[ask_traveller], checkpointer=store)
    await agent.run("Do I need a visa?", thread_id="visa")


async def _old(store: Checkpointer) -> None:
    model = ScriptedModel([ModelRefused("scripted", "no such model")])
    try:
        await Agent(model, name="writer", checkpointer=store).run("Summarise the year.", thread_id="old")
    except ModelRefused:
        return
    raise AssertionError("it was to fail")


if __name__ == "__main__":
    asyncio.run(_make(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
