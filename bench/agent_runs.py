"""What an agent's run costs with every turn and every file on record, beside a bare loop with no more than three INSERTs."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from bench.corpus import Corpus, Turn
from bench.folders import make_tree
from bench.lanes import floor_database, insert
from bench.results import Limit, Result, at_most, spread
from bench.scale import Scale, own_cache, progress, scratch
from bench.show import micros
from clew.agent import Agent
from clew.checkpointers import SQLiteCheckpointer
from clew.messages import Message, Text, ToolResult, tool_calls, user
from clew.messages import tool as results
from clew.models import Model, ModelEvent, ModelRequest, ModelResponse
from clew.testing import ScriptedModel, call, say
from clew.tools import AnyTool, tool

__all__ = ["agent_runs"]

_CLEW, _BARE, _INSERTS = "clew sqlite", "bare loop", "three INSERTs a turn"
_PROMPT = "Revise the texts, two files at a time, until all notes are worked in."


class Taken(msgspec.Struct, frozen=True):
    """Where the time of one run went, in seconds."""

    wall: float
    model: float
    tools: float
    waited: float
    """For the record: as the run itself says it, or for the INSERTs."""

    @property
    def rest(self) -> float:
        """Neither the model's nor the tools': waits, and all that the processor does for the record in between."""
        return self.wall - self.model - self.tools


Run = Callable[["_Job", Path], Awaitable[Taken]]


async def agent_runs(scale: Scale) -> list[Result]:
    turns = Corpus().conversation(scale.agent_turns)
    ways: dict[str, Run] = {_CLEW: _with_clew, _BARE: _bare}
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    with scratch() as folder, own_cache(folder / "cache"):
        tree = folder / "tree"
        make_tree(tree, scale.agent_files, scale.agent_files_bytes)
        os.sync()
        for repeat in range(scale.repeats):
            names = list(ways)
            for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
                progress(f"agent: {len(turns)} turns, {name}, repeat {repeat + 1} of {scale.repeats}")
                gc.collect()
                job = _Job(tree, turns, scale.model_seconds)
                taken[name].append(await ways[name](job, folder / f"{repeat}.db"))
    return _results(taken[_CLEW], taken[_BARE], scale)


def _results(ours: list[Taken], bare: list[Taken], scale: Scale) -> list[Result]:
    run = f"agent, {scale.agent_turns} turns, {scale.agent_files:,} files"
    walls = [taken.wall for taken in ours]
    waits, floors = [taken.waited for taken in ours], [taken.waited for taken in bare]
    asked = scale.agent_turns + 1
    turns, bare_turns = [wall / asked for wall in walls], [(taken.wall - taken.waited) / asked for taken in bare]
    return [
        _row(f"{run}: waited for the record / the whole run", waits, walls, at_most(0.02)),
        _row(f"{run}: waited for the record / {_INSERTS}", waits, floors),
        _row(f"{run}: all but model and tools / the whole run", [taken.rest for taken in ours], walls),
        _row(f"{run}: a turn, {_CLEW} / {_BARE}", turns, bare_turns),
    ]


def _row(what: str, ours: list[float], other: list[float], limit: Limit | None = None) -> Result:
    return Result(
        what,
        micros(spread(ours).median),
        micros(spread(other).median),
        spread([mine / theirs for mine, theirs in zip(ours, other, strict=True)]),
        limit,
    )


class _Job:
    """The same model and the same tool for both ways, each with a clock of its own."""

    def __init__(self, tree: Path, turns: list[Turn], delay: float) -> None:
        self.tree = tree
        self.turns = turns
        self.model = _TimedModel(_script(turns, delay))
        self.tool_seconds = 0.0
        self._files = sorted(tree.rglob("*.txt"))

    async def revise(self, number: int, note: str) -> str:
        """Work a note into two files, and tell what they hold now."""
        start = time.perf_counter()
        for place in (number * 37, number * 37 + 500):
            file = self._files[place % len(self._files)]
            file.write_bytes(file.read_bytes() + f"{note}\n".encode())
        told = json.dumps(self.turns[number].rows)
        self.tool_seconds += time.perf_counter() - start
        return told

    def tool(self) -> AnyTool:
        return tool(effect="once")(self.revise)

    def taken(self, wall: float, waited: float) -> Taken:
        if self.model.calls != len(self.turns) + 1:
            raise AssertionError(f"the model was asked {self.model.calls} times for {len(self.turns)} turns")
        return Taken(wall, self.model.seconds, self.tool_seconds, waited)


class _TimedModel:
    """A model, and the seconds that it took to answer; those of whoever reads its stream are not among them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.seconds = 0.0
        self.calls = 0

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def context_window(self) -> int | None:
        return self._model.context_window

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.calls += 1
        start = time.perf_counter()
        async for event in self._model.stream(request):
            self.seconds += time.perf_counter() - start
            yield event
            start = time.perf_counter()
        self.seconds += time.perf_counter() - start


def _script(turns: list[Turn], delay: float) -> Model:
    """A call of the tool in every turn, and then the last word."""
    calls = [say(turn.reply) + call("revise", number=number, note=turn.user) for number, turn in enumerate(turns)]
    return ScriptedModel([*calls, "All notes are worked in."], delay=delay)


async def _with_clew(job: _Job, path: Path) -> Taken:
    """From `run` to its result: the store is opened, the lease taken and given back, and every turn snapshotted."""
    async with SQLiteCheckpointer(path) as store:
        agent = Agent(
            job.model,
            tools=[job.tool()],
            checkpointer=store,
            workspace=job.tree,
            max_turns=len(job.turns) + 10,
            durability="sync",
        )
        start = time.perf_counter()
        result = await agent.run(_PROMPT, thread_id="bench")
        wall = time.perf_counter() - start
        if (result.status, result.turns) != ("done", len(job.turns) + 1):
            raise AssertionError(f"the run is {result.status} after {result.turns} turns")
        return job.taken(wall, result.waited)


async def _bare(job: _Job, path: Path) -> Taken:
    """The least that an agent does: ask, call, tell, and ask again. And the least that it can keep, one INSERT for each: the
    response, that a call begins, what it came to. They are timed by themselves, so that the loop without them is known."""
    db = floor_database(path.with_suffix(".floor.db"))
    inserts: list[float] = []

    def keep(kept: object) -> None:
        begun = time.perf_counter()
        insert(db, msgspec.json.encode(kept).decode())
        inserts.append(time.perf_counter() - begun)

    spec = job.tool().spec
    messages: list[Message] = [user(_PROMPT)]
    start = time.perf_counter()
    while True:
        response = await _answer(job.model, ModelRequest(messages=tuple(messages), tools=(spec,)))
        keep(response.message)
        messages.append(response.message)
        calls = tool_calls(response.message)
        if not calls:
            break
        told = []
        for asked in calls:
            keep(asked.id)
            told.append(ToolResult(asked.id, (Text(await job.revise(**asked.arguments)),)))
            keep(told[-1])
        messages.append(results(*told))
    wall = time.perf_counter() - start
    db.close()
    return job.taken(wall, sum(inserts))


async def _answer(model: Model, request: ModelRequest) -> ModelResponse:
    *_, last = [event async for event in model.stream(request)]
    if not isinstance(last, ModelResponse):
        raise AssertionError("the model ended its stream without a response")
    return last
