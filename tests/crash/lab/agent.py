"""The agent of the lab: each of its turns calls a tool, of every kind of effect in turn, and its ledger tells what happened.

A prompt says how many turns it wants: `lab-3: do 10`. The conversation alone decides what the model answers, so a model in
any process goes on with it.
"""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

from clew import Agent, ToolContext, tool
from clew.agent.prompts import is_prompt
from clew.checkpointers import Checkpointer
from clew.messages import Assistant, Message, Text, ToolCall, ToolResult, plain_text, tool_calls
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.tools import NOT_DONE, NotDone
from tests.crash.lab.ledger import Ledger

__all__ = ["NAME", "NOTES", "TOOLS", "counted", "lab_agent", "prompt", "results_of", "turns_wanted"]

NAME = "lab"
NOTES = "notes.txt"
TOOLS = ("charge", "note", "pay", "note", "walk", "put", "look")
"""The tools in the order in which the model calls them, again and again."""
_HAS = re.compile(r"has (\d+)")
_DO = re.compile(r": do (\d+)")


def prompt(thread_id: str, turns: int, words: str = "") -> str:
    """Return a prompt that makes the model call so many more tools, one after the other."""
    return f"{thread_id}: do {turns} {words}".rstrip()


def turns_wanted(text: str) -> int:
    found = _DO.search(text)
    assert found is not None, text
    return int(found[1])


def results_of(messages: tuple[Message, ...]) -> dict[str, str]:
    """Return the text of the result of each call, by the id of that call."""
    return {
        block.call_id: "".join(part.text for part in block.content if isinstance(part, Text))
        for message in messages
        for block in message.content
        if isinstance(block, ToolResult)
    }


def counted(text: str) -> int:
    """Return how many notes a result of the tool `note` says that there are."""
    found = _HAS.search(text)
    assert found is not None, text
    return int(found[1])


def lab_agent(
    store: Checkpointer | str, ledger: Ledger, files: Path | None, *, delay: float = 0.0, pause: float = 0.0
) -> Agent:
    """Return the agent. `files` is the folder in which this machine keeps a folder for each thread; without it, somebody
    else says where the files are. `delay` is how long the model thinks, and `pause` how long a tool may take at most
    before and after what it does."""

    async def rest() -> None:
        await asyncio.sleep(random.uniform(0, pause))

    def was_paid(ctx: ToolContext, number: int) -> str | NotDone:
        return f"paid {number}" if ledger.has("paid", ctx.idempotency_key) else NOT_DONE

    @tool(effect="once")
    async def charge(number: int, ctx: ToolContext) -> str:
        await rest()
        await ctx.fence()
        ledger.add("charged", ctx.thread_id, number, ctx.idempotency_key)
        await rest()
        return f"charged {number}"

    @tool(effect="once", reconcile=was_paid)
    async def pay(number: int, ctx: ToolContext) -> str:
        await rest()
        await ctx.fence()
        ledger.add("paid", ctx.thread_id, number, ctx.idempotency_key)
        await rest()
        return f"paid {number}"

    @tool(effect="none")
    async def look(number: int, ctx: ToolContext) -> str:
        ledger.add("looked", ctx.thread_id, number, ctx.idempotency_key)
        await rest()
        return f"looked {number}"

    @tool(effect="idempotent")
    async def put(number: int, ctx: ToolContext) -> str:
        ledger.add("put", ctx.thread_id, number, ctx.idempotency_key)
        await rest()
        return f"put {number}"

    @tool(effect="steps")
    async def walk(number: int, ctx: ToolContext) -> str:
        for leg in ("a", "b"):

            async def go(leg: str = leg) -> str:
                ledger.add("stepped", ctx.thread_id, f"{number}{leg}", ctx.step_key(leg))
                await rest()
                return leg

            await ctx.step(leg, go)
        return f"walked {number}"

    @tool(effect="idempotent")
    async def note(number: int, ctx: ToolContext) -> str:
        """Write the note with this number after those before it. Says how many there are, which are fewer if the folder
        lacks the newest ones."""
        assert ctx.workspace is not None
        file = ctx.workspace / NOTES
        there = [int(line) for line in file.read_text().split()] if file.exists() else []
        if there != list(range(len(there))) or len(there) > number + 1:
            ledger.add("wrong", ctx.thread_id, number, f"the notes are {there}")
        if len(there) == number:
            await rest()
            with file.open("a") as out:
                out.write(f"{number}\n")
            there.append(number)
        await rest()
        return f"has {len(there)}"

    async def answer(request: ModelRequest) -> Response:
        asked = [plain_text(message) for message in request.messages if is_prompt(message)]
        thread_id = asked[0].partition(":")[0]
        responses = [message for message in request.messages if type(message) is Assistant]
        ledger.add("asked", thread_id, len(responses))
        made = [done for message in responses for done in tool_calls(message)]
        if len(made) >= sum(map(turns_wanted, asked)):
            return "All is done."
        name = TOOLS[len(made) % len(TOOLS)]
        return call(name, number=_notes(request.messages, made) if name == "note" else len(made))

    tools: list[Any] = [charge, pay, look, put, walk, note]
    return Agent(
        ScriptedModel(answer, delay=delay),
        name=NAME,
        label=ledger.life,
        tools=tools,
        checkpointer=store,
        workspace=None if files is None else lambda thread_id: files / thread_id,
        max_turns=10**6,
        warn_turns=0,
    )


def _notes(messages: tuple[Message, ...], made: list[ToolCall]) -> int:
    """Return how many notes there are, according to the last result that says so."""
    last = next((done for done in reversed(made) if done.name == "note"), None)
    return 0 if last is None else counted(results_of(messages)[last.id])
