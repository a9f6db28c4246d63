"""An agent whose work takes twelve turns, and whose every effect is a line in a file beside its store.

Its tools are of every kind, several of them in one turn; one is an agent of its own; its files change; and its conversation
once becomes too long. All that it says and does is the same in every run, so that two runs can be compared to the letter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from clew.agent import Agent
from clew.checkpointers import Checkpointer
from clew.errors import ContextTooLong
from clew.log import Usage
from clew.messages import Assistant, ToolCall, tool_calls
from clew.models import ModelRequest, ModelResponse, Price
from clew.models.base import ModelEvent
from clew.testing import Reply, ScriptedModel, reply, say
from clew.tools import NOT_DONE, AnyTool, NotDone, ToolContext, tool
from tests.crash.agent_points import Points, agent_of, line

__all__ = ["ANSWER", "PROMPT", "THREAD", "TURNS", "make_agent"]

PROMPT = "Work through the orders."
ANSWER = "All orders are through."
THREAD = "orders"

Calls = list[tuple[str, str]]
DESK: list[Calls] = [
    [("note", "1"), ("charge", "1a")],
    [("post", "2"), ("charge", "2a")],
    [("pack", "3"), ("post", "3")],
    [("clerk", "File the orders."), ("charge", "4a"), ("look", "notes/1.txt")],
    [("note", "5"), ("post", "5")],
    [("charge", "6a"), ("charge", "6b"), ("look", "notes/5.txt")],
    [("pack", "7"), ("charge", "7a")],
    [("note", "8"), ("post", "8")],
    [("post", "9"), ("charge", "9a")],
    [("pack", "10"), ("charge", "10a")],
    [("note", "11"), ("post", "11"), ("look", "boxes/10.txt")],
]
CLERK: list[Calls] = [[("stamp", "a"), ("stamp", "b")], [("stamp", "c")]]
TURNS = len(DESK) + 1
MOST_MESSAGES = 14
"""A longer conversation does not fit the desk's model: that before the eighth turn has one more."""


def make_agent(folder: Path, store: Checkpointer, points: Points, **options: Any) -> Agent:
    world = _World(folder, points)
    prices = {"scripted-desk": Price(3, 15), "scripted-clerk": Price(1, 5)}
    clerk = Agent(
        _Model("clerk", CLERK, "All are filed.", world),
        name="clerk",
        system_prompt="You file orders.",
        tools=[_once("stamp", world)],
        prices=prices,
    )
    return Agent(
        _Model("desk", DESK, ANSWER, world),
        name="desk",
        tools=[_once("charge", world), _post(world), _note(world), _pack(world), _look(world), clerk],
        checkpointer=store,
        workspace=folder / "files",
        prices=prices,
        warn_turns=0,  # or a run that stops before its end is told more than one that does not
        **options,
    )


class _World:
    """What the agent's tools change for good."""

    def __init__(self, folder: Path, points: Points) -> None:
        self.folder = folder
        self.points = points

    async def change(self, ctx: ToolContext, file: str, text: str) -> None:
        if agent_of(ctx.thread_id) in self.points.on_record.asking:
            line(self.folder / "too-early", f"{file} {text}")
        self.points.passed("before-effect")
        await self.points.stay()
        line(self.folder / file, text)
        self.points.passed("after-effect")
        await self.points.stay()
        await self.points.wait_for_neighbours(ctx.thread_id, ctx.call_id)

    def has(self, file: str, text: str) -> bool:
        path = self.folder / file
        return path.exists() and text in path.read_text().splitlines()


def _once(name: str, world: _World) -> AnyTool:
    """A tool that must not run twice, and that can find out whether it did."""

    def was_done(ctx: ToolContext, what: str) -> str | NotDone:
        return f"{name} {what}: done" if world.has(name, what) else NOT_DONE

    @tool(name=name, effect="once", reconcile=was_done)
    async def work(what: str, ctx: ToolContext) -> str:
        await world.change(ctx, name, what)
        return f"{name} {what}: done"

    return work


def _post(world: _World) -> AnyTool:
    """A tool that must not run twice, and of which nobody knows whether it did."""

    @tool(effect="once")
    async def post(what: str, ctx: ToolContext) -> str:
        await world.change(ctx, "post", what)
        return f"posted {what}"

    return post


def _note(world: _World) -> AnyTool:
    """A tool that changes a file of the workspace, and may do so again under the same key."""

    @tool(effect="idempotent")
    async def note(what: str, ctx: ToolContext) -> str:
        await world.change(ctx, "note", f"{what} {ctx.idempotency_key}")
        _write(ctx, f"notes/{what}.txt", f"noted in turn {what}\n")
        return f"noted {what}"

    return note


def _pack(world: _World) -> AnyTool:
    """A tool in steps: one that can find out whether it happened, one that has a key, and one that changes a file."""

    @tool(effect="steps")
    async def pack(what: str, ctx: ToolContext) -> str:
        def weighed() -> int | NotDone:
            return 10 * int(what) if world.has("weigh", what) else NOT_DONE

        async def weigh() -> int:
            await world.change(ctx, "weigh", what)
            return 10 * int(what)

        async def label() -> None:
            await world.change(ctx, "label", f"{what} {ctx.step_key('label')}")

        weight = await ctx.step("weigh", weigh, reconcile=weighed)
        await ctx.step("label", label)
        _write(ctx, f"boxes/{what}.txt", f"{weight} g\n")
        return f"packed {what}: {weight} g"

    return pack


def _look(world: _World) -> AnyTool:
    """A tool that changes nothing, and runs in a thread."""

    @tool(effect="none")
    def look(what: str, ctx: ToolContext) -> str:
        world.points.passed("in-thread")
        assert ctx.workspace is not None
        return (ctx.workspace / what).read_text()

    return look


def _write(ctx: ToolContext, path: str, text: str) -> None:
    assert ctx.workspace is not None
    (ctx.workspace / path).parent.mkdir(exist_ok=True)
    (ctx.workspace / path).write_text(text)


class _Model(ScriptedModel):
    """Says what comes next by the last call in the conversation, so that it also knows after a compaction; and writes down
    every request before it answers."""

    def __init__(self, who: str, turns: list[Calls], answer: str, world: _World) -> None:
        super().__init__(self._response, name=f"scripted-{who}")
        self._who = who
        self._turns = turns
        self._answer = answer
        self._world = world

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        points, folder = self._world.points, self._world.folder
        if len(request.messages) > MOST_MESSAGES:
            line(folder / "refused", _described(request))
            raise ContextTooLong(self.name, f"{len(request.messages)} messages")
        summary = "summary-" if _is_summary(request) else ""
        points.on_record.ask(self._who)
        line(folder / "requests", f"{self._who} {_described(request)}")
        points.passed(f"{summary}request")
        await points.stay()
        async for event in super().stream(request):
            if isinstance(event, ModelResponse):
                points.passed(f"{summary}response")
            elif not summary:
                points.passed("delta")
                await points.stay()
            yield event

    def _response(self, request: ModelRequest) -> Reply:
        if _is_summary(request):
            return reply("So far all went well.", usage=Usage(5_000, 50))
        turn = min(_turns_before(request), len(self._turns))
        usage = Usage(1_000 + turn, 100 + turn)
        if turn == len(self._turns):
            return reply(self._answer, usage=usage)
        calls = [
            ToolCall(f"{turn + 1}.{index}", name, {"task" if name == "clerk" else "what": what})
            for index, (name, what) in enumerate(self._turns[turn])
        ]
        return reply(say(f"Turn {turn + 1} begins."), *calls, usage=usage)


def _described(request: ModelRequest) -> str:
    return "summary" if _is_summary(request) else str(_turns_before(request) + 1)


def _is_summary(request: ModelRequest) -> bool:
    return not request.tools


def _turns_before(request: ModelRequest) -> int:
    """How many turns the conversation has behind it, as the last of its calls says."""
    for message in reversed(request.messages):
        if isinstance(message, Assistant):
            calls = tool_calls(message)
            return int(calls[0].id.partition(".")[0]) if calls else TURNS
    return 0
