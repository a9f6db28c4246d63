"""The agents of `make fleet`: their model answers from a script, so that nothing has to be installed or paid."""

from __future__ import annotations

import asyncio
import random

from clew import Agent, ToolContext, tool
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call, turns_in

TURNS = 12


@tool(effect="once")
async def book(item: int, ctx: ToolContext) -> str:
    """Book one item of an order. Takes a moment, and must not happen twice."""
    await asyncio.sleep(random.uniform(0.5, 2.0))
    return f"item {item} of {ctx.thread_id} is booked"


def _script(request: ModelRequest) -> Response:
    turn = turns_in(request)
    return "All items are booked." if turn == TURNS else call("book", item=turn + 1)


agents = [Agent(ScriptedModel(_script, delay=0.3), name="clerk", tools=[book], max_turns=50)]
