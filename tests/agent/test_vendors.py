"""The agent through the vendors' own SDKs, against a server that speaks as they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, Workspace
from clew.agent import Agent, Retrying, SnapshotSaved
from clew.checkpointers import Checkpointer, SQLiteCheckpointer
from clew.messages import Assistant, Thinking, Tool, plain_text
from clew.testing import Fault, ModelServer, Response, call, reply, say, think
from clew.tools import DEFAULT_TOOLS, tool

pytestmark = pytest.mark.anyio

MODELS = ["anthropic:claude-opus-4-7", "openai:gpt-5", "openai-responses:gpt-5", "gemini:gemini-3.8-flash"]


def pointed_at(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.env().items():
        monkeypatch.setenv(name, value)


@tool(effect="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("model", MODELS)
async def test_a_conversation_with_parallel_calls_ends_the_same_at_every_vendor(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: list[Response] = [call("add", a=1, b=2) + call("add", a=3, b=4), say("3 and 7.")]
    async with ModelServer(script) as server, SQLiteCheckpointer(tmp_path / "c.db") as store:
        pointed_at(server, monkeypatch)
        async with Agent(model, tools=[add], checkpointer=store) as agent:
            result = await agent.run("Add.", thread_id="t")
        assert (result.output, result.turns, server.calls) == ("3 and 7.", 2, 2)
        assert result.usage is not None
        assert result.usage.input_tokens > 0
        assert result.cost is not None
        assert result.cost > 0


@pytest.mark.parametrize("model", MODELS)
async def test_a_conversation_goes_on_at_another_vendor(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: list[Response] = [reply(think("Hm."), call("add", a=1, b=2)), say("3."), say("As I said, 3.")]
    async with ModelServer(script) as server, SQLiteCheckpointer(tmp_path / "c.db") as store:
        pointed_at(server, monkeypatch)
        async with Agent(MODELS[0], tools=[add], checkpointer=store) as agent:
            await agent.run("Add.", thread_id="t")
        async with Agent(model, tools=[add], checkpointer=store) as agent:
            result = await agent.run("Again?", thread_id="t")
        assert result.output == "As I said, 3."
        assert ("model" in result.drift) == (model != MODELS[0])
        state = await Thread.load(store, "t")
        first = next(message for message in state.messages if isinstance(message, Assistant))
        assert any(isinstance(block, Thinking) for block in first.content), "thinking is kept on record"


GEMINI = MODELS[3]


@pytest.mark.parametrize(
    "models",
    [(GEMINI, MODELS[0], GEMINI), (MODELS[0], GEMINI, MODELS[2], GEMINI, MODELS[0]), (GEMINI, MODELS[1], GEMINI)],
)
async def test_a_thread_goes_from_vendor_to_vendor_and_back(
    models: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thinks, calls two tools at once and answers. The server refuses what each vendor would: a signature of
    another, a call without one, a result without its call."""
    script: list[Response] = []
    for number in range(len(models)):
        script += [reply(think(f"Hm {number}."), call("add", a=number, b=1), call("add", a=number, b=2))]
        script += [reply(think("So."), say(f"Answer {number}."))]
    async with ModelServer(script) as server, SQLiteCheckpointer(tmp_path / "c.db") as store:
        pointed_at(server, monkeypatch)
        for number, model in enumerate(models):
            async with Agent(model, tools=[add], checkpointer=store) as agent:
                result = await agent.run(f"Question {number}?", thread_id="t")
            assert result.output == f"Answer {number}."
        assert {record.outcome for record in server.requests} == {"answered"}
        last = server.requests[-1].conversation
        assert [plain_text(message) for message in last if plain_text(message).startswith("Answer")] == [
            f"Answer {number}." for number in range(len(models) - 1)
        ]
        results = [block for message in last if isinstance(message, Tool) for block in message.content]
        assert len(results) == 2 * len(models)
        state = await Thread.load(store, "t")
        first = next(message for message in state.messages if isinstance(message, Assistant))
        assert any(isinstance(block, Thinking) and block.text == "Hm 0." for block in first.content)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", [Fault(status=429, retry_after=0.01), Fault(status=500), Fault(drop_after=2)])
async def test_what_fails_for_a_moment_is_asked_again_and_recorded_once(
    model: str, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: list[Response] = [call("add", a=1, b=2), say("The sum of these two numbers is 3.")]
    async with ModelServer(script, faults={2: fault}) as server, SQLiteCheckpointer(tmp_path / "c.db") as store:
        pointed_at(server, monkeypatch)
        async with Agent(model, tools=[add], checkpointer=store) as agent:
            events = [event async for event in agent.run("Add.", thread_id="t")]
        assert sum(isinstance(event, Retrying) for event in events) == 1
        assert server.calls == 3
        assert (await Thread.load(store, "t")).turns == 2


async def test_files_are_on_record_with_the_turn_that_changed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    script: list[Response] = [
        call("write_file", path="a.txt", content="one"),
        call("write_file", path="a.txt", content="two"),
        call("read_file", path="a.txt"),
        say("Written."),
    ]
    async with ModelServer(script) as server, SQLiteCheckpointer(tmp_path / "store" / "c.db") as store:
        pointed_at(server, monkeypatch)
        async with Agent(MODELS[0], tools=DEFAULT_TOOLS, checkpointer=store, workspace=tmp_path / "files") as agent:
            events = [event async for event in agent.run("Write.", thread_id="t")]
        assert [event.turn for event in events if isinstance(event, SnapshotSaved)] == [1, 2]
        assert await _restored(store, 1, tmp_path / "one") == "one"
        assert await _restored(store, 3, tmp_path / "three") == "two"


async def _restored(store: Checkpointer, turn: int, folder: Path) -> str:
    state = await Thread.load(store, "t", at_turn=turn)
    assert state.workspace is not None
    await Workspace(folder.parent / "files", store).restore(state.workspace, into=folder)
    return (folder / "a.txt").read_text()
