"""What a tool says about the turn: on record with the outcome of its call, told in every view, and gone with the turn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clew import Thread
from clew.agent import Agent
from clew.checkpointers import MemoryCheckpointer, open_checkpointer
from clew.errors import ContextTooLong, InvalidInput
from clew.log import StateSet, ToolOutcome, decode_frame
from clew.messages import plain_text
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call, turns_in
from clew.threads.views.timeline import read_timeline
from clew.tools import ToolContext, tool

pytestmark = pytest.mark.anyio


@tool
async def search(query: str, ctx: ToolContext) -> str:
    ctx.metadata["sources"] = [f"{query}.html"]
    ctx.metadata["sources"].append("index.html")
    return "found"


@tool
def count(ctx: ToolContext) -> str:
    ctx.metadata["rows"] = ctx.turn
    raise ValueError("no such table")


def agent_on(store: Any, *more: Any) -> Agent:
    script: list[Any] = [call("search", query="paris"), [call("search", query="oslo"), call("count")], "Oslo."]
    return Agent(ScriptedModel([*script, *more]), tools=[search, count], checkpointer=store)


OF_PARIS = {"sources": ["paris.html", "index.html"]}
OF_OSLO = {"sources": ["oslo.html", "index.html"], "rows": 2}


async def test_metadata_is_kept_by_turn_and_told_in_trajectory_and_timeline(store: MemoryCheckpointer) -> None:
    agent = agent_on(store)
    result = await agent.run("Where to?", thread_id="t")
    assert result.status == "done"
    assert (await Thread.load(store, "t")).metadata == {1: OF_PARIS, 2: OF_OSLO}
    assert (await agent.trajectory("t")).metadata == {1: OF_PARIS, 2: OF_OSLO}
    assert [turn.metadata for turn in (await read_timeline(store, "t")).turns] == [OF_PARIS, OF_OSLO, {}]


async def test_metadata_is_in_one_frame_with_the_outcome_of_its_call(store: MemoryCheckpointer) -> None:
    await agent_on(store).run("Where to?", thread_id="t")
    frames = [decode_frame(data, "t", number).entries for number, data in enumerate(await store.read("t"))]
    (frame,) = [entries for entries in frames if StateSet("sources", OF_PARIS["sources"], "turn") in entries]
    at = frame.index(StateSet("sources", OF_PARIS["sources"], "turn"))
    assert isinstance(frame[at + 1], ToolOutcome)


async def test_metadata_goes_when_its_turn_is_rewound(store: MemoryCheckpointer) -> None:
    await agent_on(store).run("Where to?", thread_id="t")
    async with Thread.open(store, "t") as thread:
        await thread.rewind(to_turn=1)
        assert thread.checkpoint.metadata == {1: OF_PARIS}
    fork = await _forked(store)
    assert fork == [OF_PARIS]


async def _forked(store: MemoryCheckpointer) -> list[Any]:
    async with Thread.open(store, "t") as thread:
        await thread.fork("other", at_turn=1)
    return [turn.metadata for turn in (await read_timeline(store, "other")).turns]


async def test_metadata_goes_when_its_turn_is_unwound(store: MemoryCheckpointer) -> None:
    @tool(effect="none")
    async def read(lines: int, ctx: ToolContext) -> str:
        ctx.metadata[f"{lines} lines"] = lines
        return "row\n" * lines

    def script(request: ModelRequest) -> Response:
        if sum(len(str(message)) for message in request.messages) > 10_000:
            return ContextTooLong("scripted", "too long")
        if "did not fit" in plain_text(request.messages[-1]):
            return call("read", lines=10)
        return "Read." if turns_in(request) else call("read", lines=10_000)

    agent = Agent(ScriptedModel(script), tools=[read], checkpointer=store, on_overflow="unwind")
    await agent.run("Read it.", thread_id="t")
    assert (await Thread.load(store, "t")).metadata == {1: {"10 lines": 10}}


async def test_clew_show_tells_it_as_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url) as store:
        await agent_on(store).run("Where to?", thread_id="t")
    command = [sys.executable, "-m", "clew", "show", "t", "--json", "--store", url]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    told = [what["metadata"] for what in shown["timeline"] if what["type"] == "turn" and what.get("metadata")]
    assert told == [OF_PARIS, OF_OSLO]


@pytest.mark.parametrize(("key", "value"), [("clew:turn:1", 1), ("k", object())], ids=["reserved", "object"])
async def test_what_cannot_be_kept_is_refused_at_once(key: str, value: Any) -> None:
    with pytest.raises(InvalidInput):
        ToolContext().metadata[key] = value


async def test_the_state_has_no_keys_of_clews_own() -> None:
    with pytest.raises(InvalidInput, match="'clew:questions' begins with 'clew:'"):
        ToolContext().state["clew:questions"] = []
