"""Tasks with Stirrup's names: stopped in any way, they go on at the turn where they stopped, with their files."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clew import Agent as ClewAgent
from clew import Thread
from clew.checkpointers import HeadQuery, MemoryCheckpointer
from clew.compat.stirrup import DEFAULT_TOOLS, Agent, FinishParams, compute_task_hash, default_tools
from clew.errors import InvalidInput, ThreadBusy, UsageError
from clew.messages import plain_text
from clew.testing import Response, ScriptedModel, call
from clew.tools import ToolContext, tool

pytestmark = pytest.mark.anyio

PROMPT = "Analyze all datasets in the data folder"
HASH = compute_task_hash(PROMPT)
THREAD = f"stirrup:{HASH}"
CACHED = f"Cached state for task {HASH}\n"


def resuming(turn: int) -> str:
    return f"Resuming from cached state at turn {turn}\n"


@pytest.fixture
async def store() -> AsyncIterator[MemoryCheckpointer]:
    async with MemoryCheckpointer() as opened:
        yield opened


def script(steps: int) -> list[Response]:
    """Steps that write a file each, and the end."""
    writes: list[Response] = [
        call("write_file", path=f"f{step}.txt", content=str(step)) for step in range(1, steps + 1)
    ]
    return [*writes, call("finish", reason="Analysed.", paths=["f1.txt"])]


def make_agent(model: ScriptedModel, store: MemoryCheckpointer, **given: Any) -> Agent:
    return Agent(client=model, **{"name": "researcher", "max_turns": 50, "checkpointer": store, **given})


async def interrupted(store: MemoryCheckpointer, folder: Path | None, turns: int = 15, **given: Any) -> None:
    agent = make_agent(ScriptedModel(script(20)), store, max_turns=turns, **given)
    async with agent.session(folder) as session:
        outcome = await session.run(PROMPT)
    assert outcome.finish_params is None


def files(folder: Path) -> int:
    return len([path for path in folder.iterdir() if path.name.startswith("f")])


@pytest.mark.parametrize("with_folder", [True, False])
async def test_a_task_that_reached_max_turns_goes_on_at_that_turn_with_its_files(
    with_folder: bool, store: MemoryCheckpointer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "output" if with_folder else None
    await interrupted(store, folder)
    assert capsys.readouterr().err == CACHED
    if folder is not None:
        shutil.rmtree(folder)

    seen: list[int] = []

    @tool(effect="none", needs_workspace=True)
    def count(ctx: ToolContext) -> int:
        assert ctx.workspace is not None
        seen.append(files(ctx.workspace))
        return seen[-1]

    model = ScriptedModel([*script(15)[:15], call("count"), *script(15)[15:]])
    agent = make_agent(model, store, tools=[*DEFAULT_TOOLS, count])
    async with agent.session(folder, resume=True) as session:
        finish_params, history, metadata = await session.run(PROMPT)
    assert capsys.readouterr().err == resuming(15)
    assert (finish_params, model.calls, seen) == (FinishParams("Analysed.", ["f1.txt"]), 2, [15])
    assert [plain_text(message) for message in history[0]].count(PROMPT) == 1
    assert metadata == {}
    assert session.result is not None
    assert (session.result.resumed_from, session.result.turns) == (15, 17)
    assert await store.head(THREAD) is None, "a task that ended well is cleared"


@pytest.mark.parametrize("stop", [RuntimeError("boom"), asyncio.CancelledError()])
async def test_a_task_that_an_error_or_a_cancel_stopped_goes_on(
    stop: BaseException, store: MemoryCheckpointer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken: list[Any] = [*script(15)[:15], stop]

    def answer(request: Any) -> Any:
        taken = broken[sum(type(message).__name__ == "Assistant" for message in request.messages)]
        if isinstance(taken, BaseException):
            raise taken
        return taken

    agent = make_agent(ScriptedModel(answer), store)
    with pytest.raises(type(stop)):
        async with agent.session(tmp_path) as session:
            await session.run(PROMPT)
    assert capsys.readouterr().err == CACHED
    async with make_agent(ScriptedModel(script(15)), store).session(tmp_path, resume=True) as session:
        assert (await session.run(PROMPT)).finish_params is not None
    assert capsys.readouterr().err == resuming(15)
    assert files(tmp_path) == 15


@pytest.mark.parametrize("argument", ["clear_cache_on_success", "clear_on_success"])
async def test_a_kept_task_returns_its_outcome_and_asks_nothing(
    argument: str, store: MemoryCheckpointer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel(script(2))
    for _ in range(2):
        async with make_agent(model, store).session(tmp_path, resume=True, **{argument: False}) as session:
            assert (await session.run(PROMPT)).finish_params == FinishParams("Analysed.", ["f1.txt"])
    assert model.calls == 3
    assert capsys.readouterr().err == ""
    head = await store.head(THREAD)
    assert head is not None
    assert (head.status, head.turns) == ("done", 3)


async def test_without_resume_the_task_begins_anew_and_its_history_stays(
    store: MemoryCheckpointer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await interrupted(store, tmp_path / "one", turns=4)
    await interrupted(store, tmp_path / "two", turns=2)
    assert capsys.readouterr().err == CACHED + CACHED
    state = await Thread.load(store, THREAD)
    assert (state.turns, sum(type(message).__name__ == "Assistant" for message in state.history)) == (2, 6)
    assert files(tmp_path / "two") == 2


async def test_each_prompt_of_a_session_is_a_task_of_its_own(store: MemoryCheckpointer, tmp_path: Path) -> None:
    agent = make_agent(ScriptedModel(script(1)), store)
    async with agent.session(tmp_path, clear_cache_on_success=False) as session:
        await session.run(PROMPT)
        await session.run("Another task.")
    found = {head.thread_id async for head in store.heads(HeadQuery())}
    assert found == {THREAD, f"stirrup:{agent.task_hash('Another task.')}"}


async def test_the_hash_is_known_before_anything_is_run_and_is_that_of_stirrup() -> None:
    assert Agent(ScriptedModel([]), "researcher").task_hash(PROMPT) == HASH == "d5598c3b157a"
    with pytest.raises(InvalidInput, match="a prompt, a text that is not empty"):
        compute_task_hash([])  # type: ignore[arg-type]


async def test_the_model_must_end_a_task_with_files_that_exist(store: MemoryCheckpointer, tmp_path: Path) -> None:
    lies = [call("finish", reason="Done.", paths=["none.txt"]), call("finish", reason="Done.", paths=["../x"])]
    model = ScriptedModel(["I am done.", *lies, call("finish", reason="Nothing to do.")])
    async with make_agent(model, store).session(tmp_path) as session:
        assert (await session.run(PROMPT)).finish_params == FinishParams("Nothing to do.", [])
    assert model.calls == 4


async def test_a_task_that_another_process_works_on_is_refused_and_nothing_is_said(
    store: MemoryCheckpointer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await interrupted(store, tmp_path, turns=1)
    capsys.readouterr()
    async with Thread.open(store, THREAD):
        for resume in (True, False):
            with pytest.raises(ThreadBusy):
                async with make_agent(ScriptedModel(script(1)), store).session(tmp_path, resume=resume) as session:
                    await session.run(PROMPT)
    assert capsys.readouterr().err == ""


async def test_the_threads_of_sub_agents_are_cleared_with_the_task(store: MemoryCheckpointer, tmp_path: Path) -> None:
    helper = ClewAgent(ScriptedModel(["Helped."]), name="helper")
    model = ScriptedModel([call("helper", task="Help."), call("finish", reason="Done.")])
    async with make_agent(model, store, tools=[helper]).session(tmp_path) as session:
        await session.run(PROMPT)
        assert session.result is not None
        assert [use.name for use in session.result.tool_uses] == ["helper", "finish"]
    assert [head.thread_id async for head in store.heads(HeadQuery())] == []


async def test_what_tools_record_about_a_turn_is_in_the_outcome(store: MemoryCheckpointer, tmp_path: Path) -> None:
    @tool
    async def look(ctx: ToolContext) -> str:
        ctx.metadata["pages"] = 3
        return "seen"

    agent = make_agent(ScriptedModel([call("look"), call("finish", reason="Done.")]), store, tools=[look])
    async with agent.session(tmp_path) as session:
        assert (await session.run(PROMPT)).metadata == {1: {"pages": 3}}


async def test_a_session_leaves_no_temporary_folder(
    store: MemoryCheckpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    await interrupted(store, None, turns=2)
    assert list(tmp_path.iterdir()) == []
    state = await Thread.load(store, THREAD)
    assert state.workspace is not None
    assert state.workspace.files == 2


async def test_a_session_that_is_not_open_or_was_used_is_refused(store: MemoryCheckpointer, tmp_path: Path) -> None:
    session = make_agent(ScriptedModel(script(1)), store).session(tmp_path)
    with pytest.raises(UsageError, match="is not open"):
        await session.run(PROMPT)
    async with session:
        pass
    with pytest.raises(UsageError, match="is not open"):
        await session.run(PROMPT)
    with pytest.raises(UsageError, match="entered before"):
        async with session:
            pass


def test_default_tools_are_new_lists_of_the_same_tools() -> None:
    assert default_tools() == DEFAULT_TOOLS
    assert default_tools() is not DEFAULT_TOOLS
    assert "run_command" in {one.name for one in DEFAULT_TOOLS}
