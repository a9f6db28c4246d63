"""Run checkpoints become threads that continue: those that the Go package wrote, and those of `Store`."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, Thread
from clew.checkpointers import Checkpointer, MemoryCheckpointer, open_checkpointer
from clew.compat.importers.base import Conversation
from clew.compat.importers.session import SessionSource
from clew.compat.session import Checkpoint, Store
from clew.errors import Corrupt, InvalidInput
from clew.log import Described, Spend, StatusChanged, ThreadStarted
from clew.messages import plain_text, tool_calls
from clew.testing import ScriptedModel, call
from clew.tools import tool
from tests.compat.session.test_store import GO, TALK

pytestmark = pytest.mark.anyio


async def bring(store: Checkpointer, conversation: Conversation) -> None:
    async with Thread.open(store, conversation.thread_id) as thread:
        await thread.append(*conversation.entries)


def saved(folder: Path, run_id: str, **fields: Any) -> Path:
    with Store(folder, json_files=True) as store:
        store.save(Checkpoint(run_id, **fields))
    return folder / f"{run_id}.json"


async def test_a_run_that_the_go_package_wrote_goes_on_as_a_thread(tmp_path: Path) -> None:
    (tmp_path / "run-7.json").write_text(GO)
    with SessionSource.open(tmp_path) as source:
        assert source.kind == "session"
        (key,) = source.keys()
        conversation = source.read(key)
    assert (conversation.thread_id, conversation.files, conversation.losses) == ("run-7", None, [])
    assert isinstance(conversation.entries[0], ThreadStarted)
    assert isinstance(conversation.entries[-1], StatusChanged)
    (described,) = [entry for entry in conversation.entries if isinstance(entry, Described)]
    assert described.tags is not None
    assert described.tags["created_at"].startswith("2026-03-02T12:00:00.12345")

    store = MemoryCheckpointer()
    await bring(store, conversation)
    head = await store.head("run-7")
    assert head is not None
    assert (head.status, head.title, head.turns) == ("interrupted", "a < b", 1)
    assert (head.input_tokens, head.output_tokens, head.cost_usd) == (12345678901, 678, None)
    model = ScriptedModel(["not asked", "It is one."])
    async with Agent(model, checkpointer=store) as agent:
        result = await agent.resume(thread_id="run-7")
    assert (result.output, result.resumed_from, result.turns) == ("It is one.", 1, 2)
    (request,) = model.requests
    assert [type(message).__name__ for message in request.messages] == ["User", "Assistant", "Tool"]
    assert plain_text(request.messages[0]) == "a < b"


async def test_a_call_without_a_result_is_in_doubt_and_not_run_again_unseen(tmp_path: Path) -> None:
    looked: list[Any] = []

    @tool
    def look(deep: dict[str, Any]) -> str:
        looked.append(deep)
        return "three"

    saved(tmp_path, "r", messages=TALK)
    conversation = SessionSource.open(tmp_path).read("r.json")
    store = MemoryCheckpointer()
    await bring(store, conversation)
    model = ScriptedModel(lambda request: "I see.")
    async with Agent(model, tools=[look], checkpointer=store) as agent:
        result = await agent.resume(thread_id="r")
    assert (result.output, looked) == ("I see.", [])
    assert [call.name for message in model.requests[0].messages for call in tool_calls(message)] == ["look"] * 3


async def test_an_imported_run_is_loaded_by_the_store_of_its_folder(tmp_path: Path) -> None:
    run = Checkpoint("r", "task", 15, TALK, "Be kind.", 100, 5, datetime(2026, 3, 2, tzinfo=UTC))
    path = saved(tmp_path, **vars(run))
    conversation = SessionSource.open(path).read("r.json")
    async with open_checkpointer(f"sqlite:///{tmp_path}/clew.db") as store:
        await bring(store, conversation)
    path.unlink()
    with Store(tmp_path) as runs:
        assert runs.load("r") == run
        assert [listed.iteration for listed in runs.list()] == [15]


async def test_runs_are_listed_oldest_first_and_never_changed(tmp_path: Path) -> None:
    for number, name in enumerate(("b", "c", "a")):
        os.utime(saved(tmp_path, name, messages=TALK), (number, number))
    (tmp_path / "settings.json").write_text('{"theme": "dark"}')
    (tmp_path / "b.json.tmp").write_text("{")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    source = SessionSource.open(tmp_path)
    assert source.keys() == ["b.json", "c.json", "a.json"]
    keys = source.keys()
    versions = [source.version(key) for key in keys]
    assert [source.read(key).thread_id for key in keys] == ["b", "c", "a"]
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
    saved(tmp_path, "b", iteration=2)
    assert [source.version(key) == was for key, was in zip(keys, versions, strict=True)] == [False, True, True]


async def test_a_run_that_has_grown_begins_with_the_entries_that_it_had(tmp_path: Path) -> None:
    """Its totals and its summary alone differ, so that a thread can be extended by what is new."""
    facts = (Described, Spend, StatusChanged, ThreadStarted)
    before: list[object] = []
    for length, tokens in ((1, 10), (3, 200), (5, 3000)):
        more = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "three"}]}]
        saved(tmp_path, "r", iteration=length, messages=[*TALK, *more][:length], input_tokens=tokens)
        entries = SessionSource.open(tmp_path).read("r.json").entries
        now = [entry for entry in entries if not isinstance(entry, facts)]
        assert now[: len(before)] == before
        assert len(now) > len(before)
        assert [entry.usage.input_tokens for entry in entries if isinstance(entry, Spend)] == [tokens]
        before = list(now)


async def test_what_is_no_run_checkpoint_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "settings.json"):
        (tmp_path / "settings.json").write_text('{"theme": "dark"}')
        with pytest.raises(InvalidInput, match="JSON files with a run_id"):
            SessionSource.open(path)
    (tmp_path / "cut.json").write_text(GO[:300])
    (tmp_path / "odd.json").write_text(GO.replace('"user"', '"system"'))
    (tmp_path / "nameless.json").write_text(GO.replace("run-7", ""))
    source = SessionSource.open(tmp_path)
    keys = source.keys()
    assert len(keys) == 3
    for key in keys:
        with pytest.raises(Corrupt, match=key):
            source.read(key)
    with pytest.raises(InvalidInput, match="'x'"):
        source.read("x")


async def test_a_field_that_is_not_carried_over_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(GO.replace('"run_id"', '"model": "claude", "run_id"'))
    (loss,) = SessionSource.open(tmp_path).read("r.json").losses
    assert "'model'" in loss


async def test_a_run_goes_on_at_turn_15_after_the_import(tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "Count."}]
    for turn in range(15):
        use = {"type": "tool_use", "id": f"t{turn}", "name": "count", "input": {"number": turn}}
        done = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": "counted"}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [done]}]
    conversation = SessionSource.open(saved(tmp_path, "r", iteration=15, messages=messages)).read("r.json")
    counted: list[int] = []

    @tool
    def count(number: int) -> str:
        counted.append(number)
        return "counted"

    store = MemoryCheckpointer()
    await bring(store, conversation)
    model = ScriptedModel([*(call("count", number=number) for number in range(18)), "Done."])
    async with Agent(model, tools=[count], checkpointer=store) as agent:
        result = await agent.resume(thread_id="r")
    assert (result.output, result.resumed_from, counted) == ("Done.", 15, [15, 16, 17])
