"""Agents that pay once, and wait inside the tool at a gate, so that a whole worker can be frozen there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from clew import Agent, ToolContext, tool
from clew.checkpointers import Checkpointer
from clew.messages import Assistant
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.tools import NOT_DONE, NotDone
from tests.crash.lab.ledger import Ledger

__all__ = ["PAYERS", "payers"]

PAYERS = ("careful", "plain")
"""The names of the agents: the tool of the first has a `reconcile`."""


def payers(store: Checkpointer, ledger: Ledger, gate: Path) -> list[Agent]:
    """Return both agents. Threads with `before` in their id wait at the gate before they pay, and the others after it. A
    gate that is open lets everybody pass."""

    async def wait(ctx: ToolContext) -> None:
        ledger.add("looked", ctx.thread_id, 0, ctx.idempotency_key)
        while not gate.exists():
            await asyncio.sleep(0.02)

    async def pay_once(ctx: ToolContext) -> str:
        if "before" in ctx.thread_id:
            await wait(ctx)
        await ctx.fence()
        ledger.add("paid", ctx.thread_id, 0, ctx.idempotency_key)
        if "before" not in ctx.thread_id:
            await wait(ctx)
        return "paid"

    def was_paid(ctx: ToolContext) -> str | NotDone:
        return "paid" if ledger.has("paid", ctx.idempotency_key) else NOT_DONE

    @tool(name="pay", effect="once", reconcile=was_paid)
    async def checked(ctx: ToolContext) -> str:
        return await pay_once(ctx)

    @tool(name="pay", effect="once")
    async def unchecked(ctx: ToolContext) -> str:
        return await pay_once(ctx)

    def answer(request: ModelRequest) -> Response:
        return "Done." if any(type(message) is Assistant for message in request.messages) else call("pay")

    return [
        Agent(ScriptedModel(answer), name=name, tools=[tool_], checkpointer=store)
        for name, tool_ in zip(PAYERS, (checked, unchecked), strict=True)
    ]
