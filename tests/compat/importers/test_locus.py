"""Conversations that the real Locus wrote, as threads. `tests/compat/locus/data_writer.py` has made the data."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clew import Thread
from clew.checkpointers import MemoryCheckpointer
from clew.compat.importers.locus import LocusData
from clew.compat.locus import Agent, AgentState, tool
from clew.compat.locus.memory import BaseCheckpointer
from clew.errors import Corrupt, InvalidInput
from clew.log import Described, StatusChanged, ThreadStarted, fold
from clew.messages import ToolResult, plain_text
from clew.testing import ModelServer, ScriptedModel

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[1] / "locus" / "data"
VERSIONS = ["0.2.0", "3.0.1", "0.2.0b16"]
THREADS = ["user-42", "user/1", "user_1", "cut off"]


def data_of(version: str, folder: Path) -> Path:
    """Return where the data of this version of Locus is. A database is made from its text."""
    if (DATA / version).is_dir():
        return DATA / version
    path = folder / "locus_checkpoints.db"
    with sqlite3.connect(f"file:{path}", uri=True) as database:
        database.executescript((DATA / f"{version}.sql").read_text(encoding="utf-8"))
    database.close()
    return path


@pytest.fixture(params=VERSIONS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocusData]:
    with LocusData.open(data_of(request.param, tmp_path)) as source:
        yield source


def test_the_threads_are_listed_oldest_first(source: LocusData) -> None:
    assert source.kind == "locus"
    assert list(source.keys()) == THREADS


def test_a_conversation_is_read_with_its_calls_and_what_became_of_them(source: LocusData) -> None:
    found = source.read("user-42")
    assert found.thread_id == "user-42"
    started, *_, described, status = found.entries
    assert started == ThreadStarted(started.agent, "", "You plan trips.")  # type: ignore[union-attr]
    assert isinstance(described, Described)
    assert (described.tags or {})["created_at"].startswith("20")
    assert status == StatusChanged("done")
    state = fold(found.entries)
    assert state.title == "I am Alex. Plan a trip to Paris."
    assert [plain_text(message) for message in state.messages] == [
        "I am Alex. Plan a trip to Paris.",
        "Let me look.",
        "",
        "Paris is mild.",
        "Now book the flights.",
        "Booked for Alex.",
    ]
    good, bad = (block for block in state.messages[2].content if isinstance(block, ToolResult))
    assert (good.call_id, bad.call_id) == ("call_1", "call_2")
    assert state.turns == 3


def test_what_is_not_carried_over_is_listed(source: LocusData) -> None:
    first, *others = source.read("user-42").losses
    assert "earlier checkpoint" in first
    assert any("tokens in" in loss for loss in others)


def test_an_error_of_a_tool_is_one_where_locus_says_so(tmp_path: Path) -> None:
    with LocusData.open(DATA / "0.2.0") as source:  # newer versions keep the errors of the last run alone
        state = fold(source.read("user-42").entries)
    [_, bad] = (block for block in state.messages[2].content if isinstance(block, ToolResult))
    assert bad.is_error
    assert "no such city" in str(bad.content)


def test_threads_that_locus_mixed_up_are_named() -> None:
    with LocusData.open(DATA / "3.0.1") as source:
        losses = " ".join(source.read("user_1").losses)
        assert "'user/1'" in losses
        assert "Messages of theirs may be in this conversation" in losses
        assert [message.content[0].text for message in fold(source.read("user/1").entries).messages] == [  # type: ignore[union-attr]
            "I am user/1.",
            "Hello.",
        ]


def test_the_same_conversation_gives_the_same_entries_and_version(source: LocusData) -> None:
    for key in THREADS:
        assert source.read(key) == source.read(key)
        assert source.version(key) == source.version(key)
    assert len({source.version(key) for key in THREADS}) == len(THREADS)


@tool
async def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"{city}: 20 degrees"


async def brought(source: LocusData, store: BaseCheckpointer, key: str) -> str:
    """Write a conversation into a store, by the public interface of threads."""
    found = source.read(key)
    async with Thread.open(store.store, found.thread_id) as thread:
        await thread.append(*found.entries)
    return found.thread_id


async def test_an_agent_goes_on_with_an_imported_thread(source: LocusData, monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer(lambda request: f"After {len(request.messages)} messages.") as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        async with BaseCheckpointer(MemoryCheckpointer()) as checkpointer:
            for key in THREADS:
                thread_id = await brought(source, checkpointer, key)
                agent = Agent(
                    model="openai:gpt-5", tools=[weather], system_prompt="You plan trips.", checkpointer=checkpointer
                )
                await agent.run("What did I ask first?", thread_id=thread_id).__anext__()
                state = await checkpointer.load(thread_id)
                assert state is not None
                assert (state.messages[-1].content or "").startswith("After "), "the vendor took the conversation"
                assert state.messages[-2].content == "What did I ask first?"


async def test_a_call_that_was_cut_off_is_in_doubt_and_not_made_again(tmp_path: Path) -> None:
    made = []

    @tool
    async def pay(amount: int) -> str:
        made.append(amount)
        return "paid"

    messages = [
        {"role": "user", "content": "Pay."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "name": "pay", "arguments": {"amount": 5}}]},
    ]
    checkpoint(tmp_path, "t", messages)
    async with BaseCheckpointer(MemoryCheckpointer()) as checkpointer:
        with LocusData.open(tmp_path) as source:
            assert source.read("t").entries[-1] == StatusChanged("interrupted")
            await brought(source, checkpointer, "t")
        model = ScriptedModel(["", "I will find out."])
        await Agent(model=model, tools=[pay], checkpointer=checkpointer).run("Did you?", thread_id="t").__anext__()
    assert made == []
    assert "not known" in str(model.requests[0].messages)


def checkpoint(
    folder: Path, thread_id: str, messages: list[Any], name: str = "c1", at: str = "2026-01-01", **state: Any
) -> Path:
    path = folder / "folder" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    about = {"checkpoint_id": name, "thread_id": thread_id, "created_at": f"{at}T00:00:00+00:00"}
    path.write_text(json.dumps({**about, "state": {"messages": messages, **state}}))
    return path


HELLO = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]


def test_the_newest_checkpoint_counts_and_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    checkpoint(tmp_path, "t", HELLO[:1], "z", "2026-01-01")
    checkpoint(tmp_path, "t", HELLO, "a", "2026-01-02")
    with LocusData.open(tmp_path) as source:
        assert fold(source.read("t").entries).turns == 1
        before = source.version("t")
    torn = checkpoint(tmp_path, "t", [*HELLO, *HELLO], "b", "2026-01-03")
    torn.write_bytes(torn.read_bytes()[:-20])
    with LocusData.open(tmp_path) as source:
        found = source.read("t")
        assert fold(found.entries).turns == 1
        assert "b.json" in found.losses[0]
        assert source.version("t") == before
    checkpoint(tmp_path, "t", [*HELLO, *HELLO], "b", "2026-01-03")
    with LocusData.open(tmp_path) as source:
        assert fold(source.read("t").entries).turns == 2
        assert source.version("t") != before


def test_values_are_taken_along_and_what_has_no_place_is_told(tmp_path: Path) -> None:
    steps = [{"iteration": 1, "reflection": "Good."}]
    fields: dict[str, Any] = {
        "metadata": {"user": "Alex", "clew:own": 1},
        "errors": ["no answer"],
        "provider_state": {"id": "resp_1"},
    }
    checkpoint(tmp_path, "t", HELLO, reasoning_steps=steps, agent_id="planner", confidence_history=[0.5], **fields)
    with LocusData.open(tmp_path) as source:
        found = source.read("t")
    state = fold(found.entries)
    assert (state.agent, state.state) == ("planner", {"user": "Alex"})
    assert [word for word in ("ratings", "no answer", "vendor's id") if word not in " ".join(found.losses)] == []


def test_one_damaged_thread_does_not_hide_the_others(tmp_path: Path) -> None:
    checkpoint(tmp_path, "t", HELLO)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "c.json").write_bytes(b"\xff{")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "package.json").write_text('{"name": "no checkpoint"}')
    with LocusData.open(tmp_path) as source:
        assert list(source.keys()) == ["bad", "t"]
        with pytest.raises(Corrupt, match=r"'bad'.*none of its 1 checkpoints can be read"):
            source.read("bad")
        assert source.read("t").thread_id == "t"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "without any message"),
        ([{"role": "system", "content": "You plan trips."}], "without any message"),
        ([{"role": "emperor"}], "none of its 1 checkpoints"),
        ("Hello.", "none of its 1 checkpoints"),
    ],
)
def test_a_conversation_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path, messages: Any, says: str) -> None:
    path = checkpoint(tmp_path, "t", messages)
    with LocusData.open(tmp_path) as source, pytest.raises((Corrupt, InvalidInput), match=says) as caught:
        source.read("t")
    assert path.name in str(caught.value)


def test_a_key_that_is_not_there_is_an_error_that_lists_those_that_are(source: LocusData) -> None:
    with pytest.raises(InvalidInput, match="It has: user-42"):
        source.read("nobody")


def test_what_is_no_data_of_locus_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\.locus_checkpoints"):
        LocusData.open(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="no checkpoints of Locus"):
        LocusData.open(tmp_path)
    (tmp_path / "text").write_text("This is no database, and no checkpoint either.")
    with pytest.raises(InvalidInput, match="cannot be read as a SQLite database"):
        LocusData.open(tmp_path / "text")
    with sqlite3.connect(f"file:{tmp_path / 'other.db'}", uri=True) as database:
        database.execute("CREATE TABLE checkpoints (id TEXT)")
    database.close()
    with pytest.raises(InvalidInput, match="no database of Locus"):
        LocusData.open(tmp_path / "other.db")


def test_a_table_that_runs_what_somebody_wrote_into_the_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "prepared.db"
    with sqlite3.connect(f"file:{path}", uri=True) as database:
        database.execute("CREATE VIRTUAL TABLE checkpoints USING fts5(thread_id, data, created_at, updated_at)")
        database.execute("INSERT INTO checkpoints VALUES ('t', '{}', 0, 0)")
    database.close()
    with pytest.raises(InvalidInput, match="no database of Locus"):
        LocusData.open(path)


def test_other_tables_and_rows_without_checkpoints_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    with sqlite3.connect(f"file:{path}", uri=True) as database:
        for table in ("one", '"t""wo"'):
            columns = (
                "thread_id TEXT PRIMARY KEY, data TEXT NOT NULL, created_at TEXT NOT NULL, updated_at TEXT NOT NULL"
            )
            database.execute(f"CREATE TABLE {table} ({columns})")
            row = ("a:b", json.dumps({"messages": HELLO}), "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00")
            database.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", row)
        database.execute("INSERT INTO one VALUES ('broken', '{', '2026', '2026')")
    database.close()
    with LocusData.open(path) as source:
        assert list(source.keys()) == ["broken", '"one":a:b', '"t""wo":a:b']
        assert source.read('"t""wo":a:b').thread_id == "a:b"
        with pytest.raises(Corrupt, match="'broken'"):
            source.read("broken")


def test_the_data_is_not_changed(tmp_path: Path) -> None:
    shutil.copytree(DATA / "3.0.1", tmp_path / "data")
    path = data_of("0.2.0b16", tmp_path)
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in tmp_path.rglob("*") if file.is_file()}
    for place in (tmp_path / "data", path):
        with LocusData.open(place) as source:
            for key in THREADS:
                source.read(key)
    assert {
        file: (file.stat().st_mtime_ns, file.read_bytes()) for file in tmp_path.rglob("*") if file.is_file()
    } == before


def test_every_state_of_every_version_comes_back_whole() -> None:
    for path in DATA.rglob("*.json"):
        stored = json.loads(path.read_bytes())["state"]
        again = AgentState.from_checkpoint(stored).to_checkpoint()
        for name, value in stored.items():
            if name in ("terminal_tools", "tool_loop_read_only_tools"):
                assert sorted(again[name]) == sorted(value)
            elif name == "messages":
                assert [{**message, "tool_calls": 0} for message in again[name]] == [
                    {**m, "tool_calls": 0} for m in value
                ]
            elif name not in ("reasoning_steps", "tool_executions"):
                assert again[name] == value, name
