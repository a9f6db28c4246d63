"""A module of a user, with agents for `clew work`; it is copied into a folder under the name `shop.py`.

What the models answer is decided by the prompt: `nap` makes a tool call, `fail` an error.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from clew import Agent, ToolContext, tool
from clew.models import ModelRequest
from clew.testing import ScriptedModel, call

HERE = Path(__file__).parent

print("a module prints this")


@tool(effect="idempotent")
async def nap(ctx: ToolContext) -> str:
    """Wait until the file `awake` is there."""
    (HERE / f"napping-{ctx.thread_id}").write_text(str(os.getpid()))
    while not (HERE / "awake").exists():
        await asyncio.sleep(0.01)
    with (HERE / "naps").open("a") as file:
        file.write(f"{ctx.thread_id}\n")
    return "slept"


def answer(request: ModelRequest) -> Any:
    said = str(request.messages[-1])
    if "fail" in said:
        raise RuntimeError("the model is \x1b[31mred")
    return call("nap") if "nap" in said else "Done."


def make(name: str, **options: Any) -> Agent:
    return Agent(ScriptedModel(answer), name=name, tools=[nap], **options)


clerk = make("clerk")
writer = make("writer")
everybody = [clerk, writer]
by_name = {"clerk": clerk, "writer": writer}
forgetful = make("clerk", checkpointer="memory://")
twins = [clerk, make("clerk")]
number = 3
nobody: list[Agent] = []


def hired() -> list[Agent]:
    return everybody


async def hired_later() -> dict[str, Agent]:
    return by_name


def on_strike() -> Agent:
    raise RuntimeError("no work today")
