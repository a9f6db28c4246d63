"""Conversations of another system become threads: whole, once, and again when they have grown."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from clew import Agent, Thread
from clew.checkpointers import Checkpointer, MemoryCheckpointer, SQLiteCheckpointer, open_checkpointer
from clew.checkpointers.sealed import SealedCheckpointer
from clew.compat.importers import Conversation, Outcome, import_all
from clew.compat.importers import transfer as importing
from clew.errors import InvalidInput, Unavailable
from clew.log import (
    Described,
    Entry,
    MessageAdded,
    Spend,
    StateSet,
    StatusChanged,
    ThreadStarted,
    ToolIntent,
    Usage,
)
from clew.messages import Text, ToolCall, ToolResult, assistant, plain_text, tool, user
from clew.testing import ScriptedModel
from clew.threads.ops import copy as copying
from clew.workspace import Workspace
from tests.compat.importers.sources import Told

pytestmark = pytest.mark.anyio

TRIP = ["Plan a trip.", "Gladly."]
MORE = [*TRIP, "And back?", "By train."]


@pytest.fixture
async def store() -> AsyncIterator[Checkpointer]:
    async with MemoryCheckpointer() as store:
        yield store


async def texts(store: Checkpointer, thread_id: str) -> list[str]:
    return [plain_text(message) for message in (await Thread.load(store, thread_id)).messages]


async def test_each_conversation_becomes_a_thread_that_says_where_it_is_from(store: Checkpointer) -> None:
    source = Told({"a": TRIP, "b": MORE}, losses=["a picture"], tags={"created_at": "2026"})
    told: list[Outcome] = []
    ticks: list[tuple[int, int | None]] = []
    done = await import_all(source, store, tell=told.append, progress=lambda *tick: ticks.append(tick))
    assert (done.ids, done.updated, done.skipped, done.failed) == (("told-a", "told-b"), (), (), {})
    assert done.losses == {"told-a": ("a picture",), "told-b": ("a picture",)}
    assert [(each.key, each.status) for each in told] == [("a", "imported"), ("b", "imported")]
    assert ticks == [(1, 2), (2, 2)]
    state = await Thread.load(store, "told-b")
    assert await texts(store, "told-b") == MORE
    assert (state.title, state.status, state.turns, state.cost_usd) == ("About b", "done", 2, 0.002)
    assert (state.system_prompt, state.model) == ("Be brief.", "openai:gpt-5")
    assert state.state == {importing.LOSSES: ["a picture"]}
    head = await store.head("told-b")
    assert head is not None
    assert head.tags == {
        "created_at": "2026",
        "imported_from": "told",
        "imported_key": "b",
        "imported_version": source.version("b"),
        "imported_as": "told-b",
    }
    assert (head.lease, head.status) == (None, "done")
    assert (await Thread.verify(store, "told-b")).sound


async def test_an_import_that_is_run_again_reads_and_writes_only_what_is_new(store: Checkpointer) -> None:
    source = Told({"a": TRIP})
    await import_all(source, store)
    before = await store.head("told-a")
    source.texts["b"] = TRIP
    source.read_keys.clear()
    done = await import_all(source, store)
    assert (done.ids, done.skipped, source.read_keys) == (("told-b",), ("told-a",), ["b"])
    assert await store.head("told-a") == before


async def test_a_thread_grows_with_its_conversation(store: Checkpointer) -> None:
    source = Told({"a": TRIP})
    await import_all(source, store)
    first = await store.head("told-a")
    source.texts["a"] = MORE
    done = await import_all(source, store)
    assert (done.ids, done.updated, done.failed) == ((), ("told-a",), {})
    state, head = await Thread.load(store, "told-a"), await store.head("told-a")
    assert await texts(store, "told-a") == MORE
    assert (state.turns, state.cost_usd, state.status) == (2, 0.002, "done")
    assert first is not None
    assert head is not None
    assert head.log_id == first.log_id
    assert head.created_at == first.created_at
    assert head.tags["imported_version"] == source.version("a")
    assert (await import_all(source, store)).skipped == ("told-a",)


@pytest.mark.parametrize("key", ["", "ab" * 32])
async def test_a_thread_grows_in_every_kind_of_store(key: str, tmp_path: Path) -> None:
    source = Told({"a": ["x" * 200_000, *MORE]}, files=tmp_path / "files")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("one")
    async with open_checkpointer(f"sqlite:///{tmp_path}/clew.db", key=key or None) as store:
        await import_all(source, store)
        source.texts["a"] = [*source.texts["a"], "y" * 300_000]
        (tmp_path / "files" / "a.txt").write_text("two")
        assert (await import_all(source, store)).updated == ("told-a",)
        assert await texts(store, "told-a") == source.texts["a"]
        state = await Thread.load(store, "told-a")
        assert state.workspace is not None
        await Workspace(tmp_path / "copy", store).restore(state.workspace)
        assert (tmp_path / "copy" / "a.txt").read_text() == "two"
        assert (await Thread.verify(store, "told-a")).sound


async def test_a_thread_that_was_worked_on_is_left_alone(store: Checkpointer) -> None:
    source = Told({"a": TRIP})
    await import_all(source, store)
    agent = Agent(ScriptedModel(lambda request: "By boat."), checkpointer=store)
    await agent.run("And back?", thread_id="told-a")
    assert (await import_all(source, store)).skipped == ("told-a",)
    source.texts["a"] = MORE
    before = await store.head("told-a")
    done = await import_all(source, store)
    assert (done.updated, [*done.failed]) == ((), ["a"])
    assert "was worked on since" in done.failed["a"]
    assert await store.head("told-a") == before
    assert (await import_all(source, store, keys=["a"], thread_id="both")).ids == ("both",)
    assert await texts(store, "both") == MORE
    assert (await import_all(source, store, keys=["a"])).skipped == ("both",)


async def test_a_conversation_that_was_changed_there_is_not_written_over_the_thread(store: Checkpointer) -> None:
    source = Told({"a": MORE})
    await import_all(source, store)
    source.texts["a"] = ["Another beginning.", "Yes."]
    done = await import_all(source, store)
    assert "changed otherwise" in done.failed["a"]
    assert await texts(store, "told-a") == MORE


async def test_values_sums_and_guesses_may_change_as_a_conversation_grows(store: Checkpointer) -> None:
    class Counted(Told):
        """Has totals and a counter, and a call whose result comes later."""

        def read(self, key: str) -> Conversation:
            step = len(self.texts[key])
            called = MessageAdded(assistant(ToolCall("c1", "pay", {"euros": 5})), Usage(10, 5), 0.5)
            entries: list[Entry] = [
                ThreadStarted("teller", f"model-{step}"),
                StateSet("step", step),
                StateSet("kind", "x"),
            ]
            entries += [MessageAdded(user("Pay.")), called]
            if step == 1:
                entries.append(ToolIntent(1, 0))
            else:
                entries += [MessageAdded(tool(ToolResult("c1", (Text("paid"),)))), MessageAdded(assistant("Paid."))]
            entries += [Spend(Usage(100 * step, step), 0.25 * step, 1.5 * step)]
            ending = StatusChanged("interrupted") if step == 1 else StatusChanged("done")
            return Conversation(thread_id="counted", entries=[*entries, Described(tags={"step": str(step)}), ending])

    source = Counted({"a": ["1"]})
    await import_all(source, store)
    assert [call.status for call in (await Thread.load(store, "counted")).calls] == ["in_doubt"]
    source.texts["a"] = ["1", "2"]
    assert (await import_all(source, store)).updated == ("counted",)
    grown = await Thread.load(store, "counted")
    async with MemoryCheckpointer() as fresh:
        await import_all(source, fresh)
        whole = await Thread.load(fresh, "counted")
    for field in ("messages", "usage", "cost_usd", "seconds", "state", "tags", "model", "status", "turns", "calls"):
        assert getattr(grown, field) == getattr(whole, field), field
    assert (grown.usage, grown.cost_usd, grown.seconds) == (Usage(210, 7), 1.0, 3.0)


async def test_another_thread_of_that_id_is_never_touched(store: Checkpointer) -> None:
    async with Thread.open(store, "told-a") as thread:
        await thread.append(MessageAdded(user("Mine.")), StatusChanged("done"))
    done = await import_all(Told({"a": TRIP, "b": TRIP}), store)
    assert (done.ids, [*done.failed]) == (("told-b",), ["a"])
    assert await texts(store, "told-a") == ["Mine."]


async def test_a_fork_of_an_import_does_not_count_as_one(store: Checkpointer) -> None:
    source = Told({"a": TRIP})
    await import_all(source, store)
    async with Thread.open(store, "told-a") as thread:
        await thread.fork("told-a-fork", at_turn=1)
    await store.delete("told-a")
    assert (await import_all(source, store)).ids == ("told-a",)


async def test_one_that_cannot_be_read_is_reported_and_the_others_are_imported(store: Checkpointer) -> None:
    done = await import_all(Told({"a": TRIP, "b": TRIP, "c": TRIP}, damaged=["b"]), store)
    assert (done.ids, done.failed) == (("told-a", "told-c"), {"b": "conversation 'b' is damaged."})


async def test_a_store_that_does_not_answer_ends_the_import(
    store: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*given: object, **named: object) -> None:
        raise Unavailable("gone")

    monkeypatch.setattr(store, "append", gone)
    with pytest.raises(Unavailable):
        await import_all(Told({"a": TRIP}), store)


async def test_files_become_the_last_snapshot_and_what_it_leaves_out_is_listed(
    store: Checkpointer, tmp_path: Path
) -> None:
    (tmp_path / "files" / "deep").mkdir(parents=True)
    (tmp_path / "files" / "deep" / "plan.md").write_text("Paris")
    os.mkfifo(tmp_path / "files" / "pipe")
    done = await import_all(Told({"a": TRIP}, files=tmp_path / "files"), store)
    assert [loss.partition(":")[0] for loss in done.losses["told-a"]] == ["file pipe"]
    state = await Thread.load(store, "told-a")
    assert state.workspace is not None
    assert state.workspace.files == 1
    await Workspace(tmp_path / "copy", store).restore(state.workspace)
    assert (tmp_path / "copy" / "deep" / "plan.md").read_text() == "Paris"


async def test_large_files_are_not_held_in_memory(
    store: Checkpointer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    class Seen(SQLiteCheckpointer):
        def __init__(self, path: Path) -> None:
            opened.append(path)
            super().__init__(path)

    monkeypatch.setattr(importing, "SQLiteCheckpointer", Seen)
    monkeypatch.setattr(importing, "_IN_MEMORY", 1000)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.bin").write_bytes(os.urandom(2000))
    await import_all(Told({"a": TRIP}, files=tmp_path / "files"), store)
    assert len(opened) == 1
    assert not opened[0].exists()
    state = await Thread.load(store, "told-a")
    assert state.workspace is not None
    await Workspace(tmp_path / "copy", store).restore(state.workspace)
    assert (tmp_path / "copy" / "a.bin").read_bytes() == (tmp_path / "files" / "a.bin").read_bytes()


async def test_an_agent_goes_on_with_an_imported_thread_and_knows_what_was_said(store: Checkpointer) -> None:
    await import_all(Told({"a": TRIP}), store)
    model = ScriptedModel(lambda request: "To Paris.")
    result = await Agent(model, checkpointer=store).run("Where to?", thread_id="told-a")
    assert result.output == "To Paris."
    assert [plain_text(message) for message in model.requests[0].messages] == [*TRIP, "Where to?"]


async def test_a_call_without_a_result_is_in_doubt_and_not_run_again(store: Checkpointer) -> None:
    class Cut(Told):
        def read(self, key: str) -> Conversation:
            call = MessageAdded(assistant(ToolCall("c1", "pay", {"euros": 5})))
            entries: list[Entry] = [MessageAdded(user("Pay.")), call, ToolIntent(1, 0), StatusChanged("interrupted")]
            return Conversation(thread_id="cut", entries=entries)

    await import_all(Cut({"a": []}), store)
    state = await Thread.load(store, "cut")
    assert [call.status for call in state.calls] == ["in_doubt"]


async def test_a_conversation_cannot_hide_its_thread(store: Checkpointer) -> None:
    done = await import_all(Told({"a": TRIP}, tags={"clew:part": "x"}), store)
    assert "Clew's own" in done.failed["a"]
    done = await import_all(Told({"a": TRIP}), store, keys=["a"], thread_id="clew:x")
    assert "Clew's own" in done.failed["a"]
    assert [head async for head in store.heads()] == []


async def test_what_is_left_of_a_killed_import_is_not_taken_for_a_thread(store: Checkpointer) -> None:
    """A part that an import left behind is of another log: its scratch store is gone."""
    async with MemoryCheckpointer() as scratch:
        await import_all(Told({"a": TRIP}), scratch)
        head = await scratch.head("told-a")
        assert head is not None
        frames = await scratch.read("told-a", stop=1)
    part = {**head.tags, "clew:part": head.log_id}
    await store.append("told-a", frames, at=0, head=replace(head, frames=1, tags=part))
    assert (await import_all(Told({"a": TRIP}), store)).ids == ("told-a",)
    assert await texts(store, "told-a") == TRIP


@pytest.mark.parametrize(
    ("keys", "thread_id", "said"),
    [
        (["nobody"], None, "there is no conversation 'nobody'"),
        ([""], None, "there is no conversation ''"),
        (["trip"], None, "beginning of several keys: trip-1, trip-2"),
        (None, "one", "Name the one to import"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    keys: list[str] | None, thread_id: str | None, said: str, store: Checkpointer
) -> None:
    with pytest.raises(InvalidInput, match=said):
        await import_all(Told({"trip-1": TRIP, "trip-2": TRIP}), store, keys=keys, thread_id=thread_id)


async def test_a_conversation_is_named_by_a_beginning_of_its_key(store: Checkpointer) -> None:
    done = await import_all(Told({"trip-1": TRIP, "trip-2": TRIP, "x": TRIP}), store, keys=["trip-2", "x"])
    assert done.ids == ("told-trip-2", "told-x")


async def test_a_sealed_store_holds_nothing_plain(tmp_path: Path) -> None:
    async with open_checkpointer(f"file://{tmp_path}/store", key="ab" * 32) as store:
        assert isinstance(store, SealedCheckpointer)
        await import_all(Told({"a": ["A secret plan.", "Yes."]}, losses=["a secret picture"]), store)
        assert await texts(store, "told-a") == ["A secret plan.", "Yes."]
    assert all(b"secret" not in path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())


async def test_a_thread_that_is_being_worked_on_is_left_to_its_holder(store: Checkpointer) -> None:
    source = Told({"a": TRIP})
    await import_all(source, store)
    source.texts["a"] = MORE
    async with Thread.open(store, "told-a"):
        done = await import_all(source, store)
    assert "thread 'told-a' is being run by" in done.failed["a"]
    assert (await import_all(source, store)).updated == ("told-a",)


async def test_more_than_one_append_can_hold_is_not_added_by_halves(
    store: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MAX_APPEND", 2000)
    source = Told({"a": TRIP})
    await import_all(source, store)
    source.texts["a"] = [*TRIP, os.urandom(2000).hex(), "Oh."]
    done = await import_all(source, store)
    assert "too large for one append; delete that copy first" in done.failed["a"]
    assert await texts(store, "told-a") == TRIP
    await store.delete("told-a")
    assert (await import_all(source, store)).ids == ("told-a",)


async def test_two_imports_at_once_end_with_each_conversation_once(tmp_path: Path) -> None:
    texts = {f"{number}": [*TRIP, "x" * 100_000, "y" * 100_000] for number in range(8)}
    url = f"sqlite:///{tmp_path}/clew.db"
    async with open_checkpointer(url) as one, open_checkpointer(url) as other:
        done = await asyncio.gather(import_all(Told(texts), one), import_all(Told(texts), other))
        again = await import_all(Told(texts), one)
        assert ([*again.ids, *again.skipped], again.failed) == ([f"told-{number}" for number in texts], {})
        assert {*done[0].ids, *done[1].ids} | {*again.ids} == {f"told-{number}" for number in texts}
        heads = [head async for head in one.heads()]
        assert sorted(head.thread_id for head in heads) == sorted(again.skipped + again.ids)
        assert [(await Thread.verify(one, head.thread_id)).sound for head in heads] == [True] * 8
