"""A thread goes back in its conversation, in its files, or in both from the same point."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread
from clew.agent.rewind import rewind
from clew.checkpointers import MemoryCheckpointer
from clew.errors import InvalidInput, ThreadBusy
from clew.log import MessageAdded, StatusChanged
from clew.messages import assistant, user
from clew.threads.reader import state_after
from clew.workspace import Workspace

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))


async def _with_files(store: MemoryCheckpointer, folder: Path) -> Workspace:
    """Two turns, with another text in the file after each."""
    folder.mkdir()
    workspace = Workspace(folder, store)
    async with Thread.open(store, "trip") as thread:
        for number in (1, 2):
            await thread.append(MessageAdded(user(f"question {number}")), MessageAdded(assistant(f"answer {number}")))
            (folder / "plan.md").write_text(f"plan {number}")
            await thread.append((await workspace.snapshot()).entry())
        await thread.append(StatusChanged("done"))
    return workspace


async def test_both_go_back_and_what_was_there_before_is_on_record(store: MemoryCheckpointer, tmp_path: Path) -> None:
    workspace = await _with_files(store, tmp_path / "work")
    (workspace.path / "mine.txt").write_text("of nobody's turn")
    then = await Thread.load(store, "trip", at_turn=1)
    done = await rewind(store, "trip", 1, files=then.workspace, workspace=workspace)
    now = await Thread.load(store, "trip")
    assert (now.turns, now.messages, now.workspace, now.status) == (1, then.messages, then.workspace, "interrupted")
    assert [path.name for path in workspace.path.iterdir()] == ["plan.md"]
    assert (workspace.path / "plan.md").read_text() == "plan 1"

    before = await state_after(store, "trip", done.frames)
    assert (done.turns, before.turns) == (2, 2)
    assert before.workspace is not None
    await workspace.restore(before.workspace)
    assert (workspace.path / "mine.txt").read_text() == "of nobody's turn"
    assert (workspace.path / "plan.md").read_text() == "plan 2"
    assert (await Thread.verify(store, "trip")).sound


async def test_files_alone_leave_the_conversation_and_are_the_newest_on_record(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    workspace = await _with_files(store, tmp_path / "work")
    then = await Thread.load(store, "trip", at_turn=1)
    done = await rewind(store, "trip", files=then.workspace, workspace=workspace)
    now = await Thread.load(store, "trip")
    assert (now.turns, now.status, now.workspace) == (2, "done", then.workspace)
    assert done.restored is not None
    assert (workspace.path / "plan.md").read_text() == "plan 1"


async def test_the_conversation_alone_leaves_the_files(store: MemoryCheckpointer, tmp_path: Path) -> None:
    workspace = await _with_files(store, tmp_path / "work")
    done = await rewind(store, "trip", 0)
    assert (done.restored, (await Thread.load(store, "trip")).turns) == (None, 0)
    assert (workspace.path / "plan.md").read_text() == "plan 2"


async def test_a_turn_that_is_not_there_and_a_thread_in_use_change_nothing(
    store: MemoryCheckpointer, tmp_path: Path
) -> None:
    workspace = await _with_files(store, tmp_path / "work")
    then = await Thread.load(store, "trip", at_turn=1)
    with pytest.raises(InvalidInput, match="turns 0 to 2"):
        await rewind(store, "trip", 7, files=then.workspace, workspace=workspace)
    with pytest.raises(InvalidInput, match="give both"):
        await rewind(store, "trip", 1, workspace=workspace)
    async with Thread.open(store, "trip"):
        with pytest.raises(ThreadBusy):
            await rewind(store, "trip", 1, files=then.workspace, workspace=workspace)
    assert (workspace.path / "plan.md").read_text() == "plan 2"
    assert (await Thread.load(store, "trip")).turns == 2
