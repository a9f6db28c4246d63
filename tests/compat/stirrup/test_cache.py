"""`CacheManager`: what a store holds of tasks, listed, read, changed and cleared by blocking calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.compat.stirrup import Agent, CacheManager, compute_task_hash
from clew.errors import InvalidInput, ThreadBusy
from clew.log import MessageAdded, fold
from clew.messages import Message, assistant, plain_text, user
from clew.testing import ScriptedModel, call

PROMPT = "Analyze all datasets in the data folder"
HASH = compute_task_hash(PROMPT)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/clew.db"


@pytest.fixture
def caches(url: str) -> CacheManager:
    return CacheManager(checkpointer=url)


async def work(url: str, folder: Path, *, turns: int, prompt: str = PROMPT, resume: bool = False) -> int:
    """Run a task for this many turns, of which each writes a file. Returns how many model calls that took."""
    model = ScriptedModel(
        [*(call("write_file", path=f"f{turn}", content="x") for turn in range(1, 9)), call("finish", reason="Done.")]
    )
    agent = Agent(model, "researcher", max_turns=turns, checkpointer=url)
    async with agent.session(folder, resume=resume) as session:
        await session.run(prompt)
    return model.calls


def test_a_store_that_does_not_exist_holds_nothing_and_is_not_made(caches: CacheManager, tmp_path: Path) -> None:
    assert (caches.list_caches(), caches.get_cache_info(HASH), caches.load_state(HASH)) == ([], None, None)
    caches.clear_cache(HASH)
    assert caches.restore_files(HASH, tmp_path / "files") is False
    assert list(tmp_path.iterdir()) == []


def test_tasks_are_listed_with_their_true_turn_and_cleared(caches: CacheManager, url: str, tmp_path: Path) -> None:
    asyncio.run(work(url, tmp_path / "one", turns=5))
    asyncio.run(work(url, tmp_path / "two", turns=3, prompt="Another task."))
    other = compute_task_hash("Another task.")
    assert caches.list_caches() == [other, HASH]
    info = caches.get_cache_info(HASH)
    assert info is not None
    assert info.pop("timestamp") > "2026-"
    assert info == {
        "task_hash": HASH,
        "turn": 5,
        "agent_name": "researcher",
        "has_files": True,
        "status": "interrupted",
    }
    asyncio.run(work(url, tmp_path / "one", turns=7, resume=True))
    assert {task: (caches.get_cache_info(task) or {})["turn"] for task in caches.list_caches()} == {HASH: 7, other: 3}
    caches.clear_cache(HASH)
    assert (caches.list_caches(), caches.get_cache_info(HASH)) == ([other], None)


def test_the_manager_works_where_an_event_loop_runs_and_while_a_task_is_worked_on(
    caches: CacheManager, url: str, tmp_path: Path
) -> None:
    async def main() -> None:
        await work(url, tmp_path, turns=2)
        assert caches.list_caches() == [HASH]
        async with open_checkpointer(url) as store, Thread.open(store, f"stirrup:{HASH}"):
            assert (caches.get_cache_info(HASH) or {})["turn"] == 2
            with pytest.raises(ThreadBusy):
                caches.clear_cache(HASH)
        caches.clear_cache(HASH)

    asyncio.run(main())
    assert caches.list_caches() == []


def test_files_are_restored_beside_those_that_are_there(caches: CacheManager, url: str, tmp_path: Path) -> None:
    asyncio.run(work(url, tmp_path / "output", turns=3))
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("mine")
    (target / "f1").write_text("old")
    for folder, names in ((target, ["f1", "f2", "f3", "mine"]), (tmp_path / "new", ["f1", "f2", "f3"])):
        assert caches.restore_files(HASH, folder) is True
        assert sorted(path.name for path in folder.iterdir()) == names
        assert (folder / "f1").read_text() == "x"


def test_a_state_is_loaded_changed_saved_and_gone_on_with(caches: CacheManager, url: str, tmp_path: Path) -> None:
    asyncio.run(work(url, tmp_path / "output", turns=3))
    state = caches.load_state(HASH)
    assert state is not None
    assert (state.turns, plain_text(state.messages[0])) == (3, PROMPT)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "given.txt").write_text("given")
    more = fold([MessageAdded(assistant("Step 4."))], state)
    caches.save_state(HASH, more, tmp_path / "other")
    assert (caches.get_cache_info(HASH) or {})["turn"] == 4
    assert asyncio.run(work(url, tmp_path / "empty", turns=50, resume=True)) == 5
    assert (tmp_path / "empty" / "given.txt").read_text() == "given"


def test_a_task_can_begin_with_a_saved_conversation(caches: CacheManager, url: str, tmp_path: Path) -> None:
    said: list[Message] = [user("I am Ada."), assistant("Hello, Ada."), user(PROMPT)]
    caches.save_state(HASH, fold([MessageAdded(message) for message in said]))
    assert (caches.get_cache_info(HASH) or {})["has_files"] is False
    asyncio.run(work(url, tmp_path / "output", turns=2, resume=True))
    state = caches.load_state(HASH)
    assert state is not None
    assert [plain_text(message) for message in state.messages[:3]] == ["I am Ada.", "Hello, Ada.", PROMPT]
    assert state.turns == 3


@pytest.mark.parametrize("given", ["", None, 7])
def test_a_hash_that_is_none_is_refused(given: str, caches: CacheManager) -> None:
    with pytest.raises(InvalidInput, match="a task hash is a text"):
        caches.get_cache_info(given)


def test_files_to_save_must_be_in_a_folder(caches: CacheManager, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a folder"):
        caches.save_state(HASH, fold([]), tmp_path / "nowhere")
