"""A thread's files: on record with the turn they are of, also where a stop comes at an awkward moment."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from clew import Thread
from clew.agent import Agent
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput
from clew.log import MessageAdded, ToolIntent, ToolOutcome, WorkspaceChanging
from clew.messages import Message, Text, ToolCall, ToolResult, assistant, plain_text, user
from clew.models import ModelRequest
from clew.testing import Response, ScriptedModel, call
from clew.tools import ToolContext, tool
from clew.workspace import Workspace
from tests.clock import Clock

pytestmark = pytest.mark.anyio


@tool
async def write(name: str, ctx: ToolContext) -> str:
    """Write a file."""
    assert ctx.workspace is not None
    (ctx.workspace / name).write_text(name)
    return "written"


@tool
async def ruin(ctx: ToolContext) -> str:
    """Put a file in the place of the workspace, of which there can be no snapshot then."""
    assert ctx.workspace is not None
    shutil.rmtree(ctx.workspace)
    ctx.workspace.write_text("in the way")
    return "ruined"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def notes(messages: tuple[Message, ...]) -> list[str]:
    return [text for text in map(plain_text, messages) if text.startswith("[clew]")]


def script(last: Response) -> list[Response]:
    return [call("write", name="one"), call("write", name="two"), call("ruin"), last]


@pytest.mark.parametrize("every", [1, 5])
async def test_an_error_after_which_files_cannot_be_kept_says_which_turn_they_are_of(
    every: int, store: MemoryCheckpointer, tmp_path: Path
) -> None:
    agent = Agent(
        ScriptedModel(script(RuntimeError("down"))),
        tools=[write, ruin],
        checkpointer=store,
        workspace=tmp_path / "files",
        snapshot_every=every,
    )
    with pytest.raises(RuntimeError, match="down") as failed:
        await agent.run("Go.", thread_id="t")
    standing = "the files on record are those of turn 2" if every == 1 else "no files are on record"
    assert failed.value.__notes__[0].startswith(f"{standing}, because they could not be kept: ")
    state = await Thread.load(store, "t")
    assert state.reason.startswith(f"RuntimeError: down; {standing}, because")
    assert state.files_turn == (2 if every == 1 else 0)

    model = ScriptedModel(lambda request: "Done.")
    again = Agent(model, tools=[write, ruin], checkpointer=store, workspace=tmp_path / "elsewhere")
    result = await again.resume(thread_id="t")
    assert result.drift["files_turn"] == (3, state.files_turn)
    [told] = notes(model.requests[-1].messages)
    assert ("write(" in told, "ruin({})" in told) == (every == 5, True)
    assert names(tmp_path / "elsewhere") == (["one", "two"] if every == 1 else [])
    assert (await again.resume("And now?", thread_id="t")).drift == {}
    assert len(notes(model.requests[-1].messages)) == 1


async def test_a_run_out_of_time_whose_files_cannot_be_kept_says_so_in_its_reason(
    store: MemoryCheckpointer, tmp_path: Path, clock: Clock
) -> None:
    @tool
    async def hang(ctx: ToolContext) -> str:
        assert ctx.workspace is not None
        shutil.rmtree(ctx.workspace)
        clock.advance(600)
        await asyncio.Event().wait()
        return "never"

    turns: list[Response] = [call("write", name="one"), call("write", name="two"), call("hang")]
    agent = Agent(ScriptedModel(turns), tools=[write, hang], checkpointer=store, workspace=tmp_path / "files")
    result = await agent.run("Go.", thread_id="t", timeout=600)
    assert result.status == "interrupted"
    assert result.reason.startswith("timeout: 600 s; the files on record are those of turn 2, because")
    assert (await Thread.load(store, "t")).reason == result.reason


async def test_a_second_cancel_does_not_abandon_the_last_snapshot(
    store: MemoryCheckpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, keeping, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    snapshot = Workspace.snapshot

    async def slow(self: Workspace, *given: Any) -> Any:
        keeping.set()
        await go_on.wait()
        return await snapshot(self, *given)

    async def answer(request: ModelRequest) -> Response:
        if len(request.messages) == 1:
            return call("write", name="one")
        asked.set()
        await asyncio.sleep(60)
        return "never"

    monkeypatch.setattr(Workspace, "snapshot", slow)
    agent = Agent(ScriptedModel(answer), tools=[write], checkpointer=store, workspace=tmp_path / "files")
    run = asyncio.ensure_future(agent.run("Go.", thread_id="t"))
    await asked.wait()
    await keeping.wait()
    for _ in range(3):
        run.cancel()
        await asyncio.sleep(0)
        assert not run.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    state = await Thread.load(store, "t")
    assert (state.status, state.reason, state.files_turn, state.changing) == ("interrupted", "cancelled", 1, None)
    assert state.workspace is not None
    assert state.workspace.files == 1


async def test_a_snapshot_that_ends_the_run_is_told_once(store: MemoryCheckpointer, tmp_path: Path) -> None:
    agent = Agent(ScriptedModel(script("Done.")), tools=[write, ruin], checkpointer=store, workspace=tmp_path / "files")
    with pytest.raises(InvalidInput, match="cannot be read") as failed:
        await agent.run("Go.", thread_id="t")
    assert failed.value.__notes__ == ["the files on record are those of turn 2"]


async def test_what_a_turn_wrote_that_waits_for_a_person_is_on_record(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    agent = Agent(
        ScriptedModel([call("write", name="one") + call("pay")]),
        tools=[write, pay],
        checkpointer=store,
        workspace=tmp_path / "files",
        snapshot_every=5,
    )
    assert (await agent.run("Go.", thread_id="t")).status == "waiting"
    elsewhere = Agent(
        ScriptedModel(["", "Paid."]), tools=[write, pay], checkpointer=store, workspace=tmp_path / "elsewhere"
    )
    assert (await elsewhere.resume(thread_id="t", answer=True)).output == "Paid."
    assert names(tmp_path / "elsewhere") == ["one"]


async def crashed(store: MemoryCheckpointer, folder: Path, *, is_open: bool = False) -> None:
    """A thread as a kill leaves it in or after its third turn, in which `two` was written, with a snapshot of the first."""
    folder.mkdir()
    (folder / "one").write_text("one")
    async with Thread.open(store, "t") as thread:
        for turn, name in [(1, "one"), (3, "two")]:
            place = thread.messages + 1
            await thread.append(
                MessageAdded(user(f"Write {name}.")),
                MessageAdded(assistant(ToolCall(f"c{turn}", "write", {"name": name}))),
                WorkspaceChanging(turn),
                ToolIntent(place, 0, "k"),
            )
            if turn == 3 and is_open:
                break
            await thread.append(ToolOutcome(place, 0, ToolResult(f"c{turn}", (Text("written"),))))
            if turn == 1:
                await thread.append(
                    (await Workspace(folder, store).snapshot()).entry(), MessageAdded(assistant("Yes."))
                )


async def test_the_model_is_told_of_older_files_once_its_open_calls_are_settled(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    await crashed(store, tmp_path / "files", is_open=True)
    model = ScriptedModel(lambda request: "I will look.")
    agent = Agent(model, tools=[write], checkpointer=store, workspace=tmp_path / "elsewhere")
    await agent.resume(thread_id="t")
    *_, results, told = model.requests[-1].messages
    assert "not known whether write took effect" in str(results)
    assert "restored as they were after turn 2" in plain_text(told)
    assert 'write({"name": "two"})' in plain_text(told)


async def test_files_that_are_still_there_after_a_crash_are_kept_and_the_model_is_told_nothing(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    await crashed(store, tmp_path / "files")
    (tmp_path / "files" / "two").write_text("two")
    model = ScriptedModel(lambda request: "Done.")
    result = await Agent(model, tools=[write], checkpointer=store, workspace=tmp_path / "files").resume(thread_id="t")
    assert result.drift.keys() & {"files", "files_turn"} == {"files"}
    assert notes(model.requests[-1].messages) == []
    state = await Thread.load(store, "t")
    assert state.changing is None
    assert state.workspace is not None
    assert state.workspace.files == 2


async def test_a_resume_that_puts_older_files_in_place_of_newer_ones_tells_the_model(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    await crashed(store, tmp_path / "files")
    (tmp_path / "files" / "two").write_text("two")
    model = ScriptedModel(lambda request: "Done.")
    agent = Agent(model, tools=[write], checkpointer=store, workspace=tmp_path / "files", restore_files=True)
    result = await agent.resume(thread_id="t")
    assert result.drift["files_turn"] == (3, 2)
    assert len(notes(model.requests[-1].messages)) == 1
    assert names(tmp_path / "files") == ["one"]


async def test_a_rewound_thread_knows_which_turn_its_files_are_of(store: MemoryCheckpointer, tmp_path: Path) -> None:
    turns: list[Response] = [call("write", name=str(number)) for number in range(4)]
    agent = Agent(
        ScriptedModel([*turns, "Done."]),
        tools=[write],
        checkpointer=store,
        workspace=tmp_path / "files",
        snapshot_every=2,
    )
    await agent.run("Go.", thread_id="t")
    found = [(await Thread.load(store, "t", at_turn=turn)).files_turn for turn in range(6)]
    assert found == [0, 0, 2, 2, 4, 5]


async def test_looking_at_files_that_no_snapshot_holds_yet_counts_as_much_as_changing_them(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    seen: list[int | None] = []

    @tool(effect="none")
    async def look() -> str:
        state = await Thread.load(store, "t")
        seen.append(state.changing.since if state.changing else None)
        return "a row"

    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "data").write_text("a row")
    agent = Agent(
        ScriptedModel([call("look"), call("look"), "Done."]),
        tools=[look],
        checkpointer=store,
        workspace=tmp_path / "files",
    )
    await agent.run("Go.", thread_id="t")
    assert seen == [1, None]


async def test_a_prompt_that_is_answered_from_the_record_still_brings_its_files(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    async def work() -> tuple[Any, int]:
        model = ScriptedModel([call("write", name="report"), "Written."])
        agent = Agent(model, tools=[write], checkpointer=store)
        session = agent.session(resume=True, workspace=tmp_path / "files", delete_when_done=False)
        async with session:
            return (await session.run("Write the report.")).output, model.calls

    assert await work() == ("Written.", 2)
    shutil.rmtree(tmp_path / "files")
    assert await work() == ("Written.", 0)
    assert names(tmp_path / "files") == ["report"]
    (head,) = [head async for head in Thread.list(store)]
    assert head.status == "done"
