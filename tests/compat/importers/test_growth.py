"""A conversation of each kind, imported again and again while it goes on in the other system."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clew import Agent, Thread
from clew.agent.exchanges import ExchangeSpan, exchanges_in
from clew.checkpointers import Checkpointer, MemoryCheckpointer
from clew.compat.importers import Conversation, import_all, open_source
from clew.compat.importers.growth import LOSSES
from clew.compat.session import Checkpoint, Store
from clew.log import Described, ProviderKey, StateSet, StatusChanged, fold
from clew.messages import Tool, ToolResult, plain_text
from clew.testing import ScriptedModel
from tests.compat.importers.sources import Told
from tests.compat.importers.test_caw import copy_of, sessions
from tests.compat.importers.test_locus import DATA
from tests.compat.importers.test_native import Home
from tests.compat.importers.test_stirrup import CACHES, HASH
from tests.compat.session.test_store import TALK, result, text

pytestmark = pytest.mark.anyio

Write = Callable[[], object]
"""Writes the next state of a conversation where the other system keeps it."""


async def test_a_run_grows_with_each_iteration(tmp_path: Path) -> None:
    messages = [
        *TALK,
        {"role": "user", "content": [result("c", "three")]},
        {"role": "assistant", "content": [text("!")]},
    ]

    def save(length: int) -> None:
        with Store(tmp_path, json_files=True) as store:
            store.save(Checkpoint("r", "task", length, messages[:length], "Be kind.", 100 * length, 10 * length))

    await follow("session", tmp_path, [lambda length=length: save(length) for length in range(1, 7)])


@pytest.mark.parametrize("name", ["0.1.6-interrupted", "0.2.1-interrupted", "0.2.1-summary"])
async def test_a_task_of_stirrup_grows_with_each_message_and_with_a_summary(name: str, tmp_path: Path) -> None:
    whole = json.loads((CACHES / f"{name}.json").read_text())
    groups = [*whole["full_msg_history"], whole["msgs"]]
    states = []
    for number, group in enumerate(groups):
        lead = next(place for place, message in enumerate(group) if message["role"] == "assistant")
        for length in range(lead, min(len(group), 10) + 1):
            told = [*groups[:number], group[:length]]
            ids = {message.get("id") for each in told for message in each}
            known = {key: value for key, value in whole.get("run_metadata_by_turn", {}).items() if key in ids}
            states.append({**whole, "msgs": told[-1], "full_msg_history": told[:-1], "run_metadata_by_turn": known})
    file = tmp_path / HASH / "state.json"
    file.parent.mkdir()
    await follow("stirrup", tmp_path, [lambda state=state: file.write_text(json.dumps(state)) for state in states])


@pytest.mark.parametrize("name", ["claude_code", "codex", "opencode", "killed"])
async def test_a_session_of_caw_that_is_read_while_it_works_grows_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder, _ = copy_of(tmp_path)
    file = folder / "sessions" / sessions()[name].thread_id / "trajectory.json"
    states = list(trajectories(json.loads(file.read_text())))
    await follow("caw", file.parent, [lambda state=state: file.write_text(json.dumps(state)) for state in states])


def trajectories(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the states of a session's file as caw writes them: with each text, half and whole, with each tool call, with
    its output, and with the usage at the end of a turn."""

    def state(turn: int, output: list[Any], usage: Any) -> dict[str, Any]:
        found = copy.deepcopy({**whole, "turns": whole["turns"][: turn + 1]})
        found["turns"][turn] |= {"output": output, "usage": usage}
        return found

    for number, turn in enumerate(whole["turns"]):
        for length, block in enumerate(turn["output"]):
            half = {"text": block["text"][:2]} if block["type"] == "text" else {"output": ""}
            yield state(number, [*turn["output"][:length], {**block, **half}], {})
            yield state(number, turn["output"][: length + 1], {})
        yield state(number, turn["output"], turn["usage"])


@pytest.mark.parametrize("version", ["0.2.0", "3.0.1"])
@pytest.mark.parametrize("thread", ["user-42", "cut_off"])
async def test_a_thread_grows_with_the_checkpoints_that_locus_wrote(version: str, thread: str, tmp_path: Path) -> None:
    """A checkpoint of Locus 3 says of the last run alone which results are errors."""
    found = sorted(
        (DATA / version / thread).glob("*.json"), key=lambda file: json.loads(file.read_text())["created_at"]
    )
    (tmp_path / thread).mkdir()
    await follow("locus", tmp_path, [lambda file=file: shutil.copy(file, tmp_path / thread) for file in found])


@pytest.mark.parametrize("name", ["claude_code", "codex"])
async def test_a_session_that_is_read_while_the_program_works_grows_with_it(name: str, tmp_path: Path) -> None:
    home = Home(tmp_path)
    file = home.file(name)
    lines = file.read_text().splitlines(keepends=True)
    first = 1 + (name == "codex")
    writes = [lambda end=end: file.write_text("".join(lines[:end])) for end in range(first, len(lines) + 1)]
    state = await follow("native", file, writes)
    assert state.providers[name].messages == len(state.history)


async def follow(kind: str, path: Path, writes: list[Any]) -> Any:
    """Import a conversation after each of these writes. Each time, the thread must be as if it were imported for the
    first time. Returns its last state."""
    async with MemoryCheckpointer() as store:
        for number, write in enumerate(writes):
            write()
            with open_source(kind, path) as source:
                done = await import_all(source, store)
            assert done.failed == {}, number
            (thread_id,) = (*done.ids, *done.updated, *done.skipped)
            assert (done.ids == ()) is (number > 0)
            async with MemoryCheckpointer() as fresh:
                with open_source(kind, path) as source:
                    await import_all(source, fresh)
                agrees(await Thread.load(store, thread_id), await Thread.load(fresh, thread_id))
        assert (await Thread.verify(store, thread_id)).sound
        return await Thread.load(store, thread_id)


def agrees(grown: Any, whole: Any) -> None:
    fields = ("agent", "model", "system_prompt", "limits", "title", "tags", "status", "turns", "state", "metadata")
    for field in (*fields, "usage", "cost_usd", "seconds", "provider_keys"):
        assert getattr(grown, field) == getattr(whole, field), field
    assert [unmarked(message) for message in grown.messages] == [unmarked(message) for message in whole.messages]
    assert [(call.status, call.result) for call in grown.calls] == [(call.status, call.result) for call in whole.calls]
    assert [unplaced(span) for span in exchanges_in(grown)] == [unplaced(span) for span in exchanges_in(whole)]


def unmarked(message: Any) -> Any:
    """Return a message without the marks of errors, which a system may forget."""
    if not isinstance(message, Tool):
        return message
    return [replace(block, is_error=False) for block in message.content if isinstance(block, ToolResult)]


def unplaced(span: ExchangeSpan) -> Any:
    return replace(span, place=0, messages=tuple(unmarked(message) for message in span.messages))


# What happens to the thread


@pytest.fixture
def store() -> MemoryCheckpointer:
    return MemoryCheckpointer()


async def texts(store: Checkpointer) -> list[str]:
    return [plain_text(message) for message in (await Thread.load(store, "told-a")).messages]


async def test_an_answer_that_was_half_written_is_replaced_and_stays_in_the_history(store: MemoryCheckpointer) -> None:
    source = Told({"a": ["Plan a trip.", "Gla"]})
    await import_all(source, store)
    for said in (["Plan a trip.", "Gladly.", "And back?"], ["Plan a trip.", "Gladly.", "And back?", "By train."]):
        source.texts["a"] = said
        assert (await import_all(source, store)).updated == ("told-a",)
        assert await texts(store) == said
    state = await Thread.load(store, "told-a")
    assert [plain_text(message) for message in state.history][:3] == ["Plan a trip.", "Gla", "Gladly."]
    agent = Agent(ScriptedModel(lambda request: "By boat."), checkpointer=store)
    assert (await agent.run("Or else?", thread_id="told-a")).output == "By boat."
    assert len(await texts(store)) == 6


async def test_what_was_said_before_the_last_prompt_is_not_replaced(store: MemoryCheckpointer) -> None:
    source = Told({"a": ["Plan a trip.", "Gladly.", "And back?", "By"]})
    await import_all(source, store)
    before = await store.head("told-a")
    source.texts["a"] = ["Plan a trip.", "No.", "And back?", "By train."]
    failed = (await import_all(source, store)).failed["a"]
    assert "changed otherwise than by going on: it is another one from message 2 on" in failed
    assert "Import the conversation under another id" in failed
    assert await store.head("told-a") == before


async def test_an_end_that_was_worked_on_here_is_not_replaced(store: MemoryCheckpointer) -> None:
    source = Told({"a": ["Plan a trip.", "Gla"]})
    await import_all(source, store)
    async with Thread.open(store, "told-a") as thread:
        await thread.append(Described(tags={**thread.checkpoint.tags, "seen": "yes"}), StatusChanged("done"))
        await thread.append(StateSet("place", "Paris", "turn"))
        await thread.append(Described(tags={**thread.checkpoint.tags, "seen": "twice"}))
    source.texts["a"] = ["Plan a trip.", "Gladly."]
    assert "was worked on since it was imported" in (await import_all(source, store)).failed["a"]
    assert await texts(store) == ["Plan a trip.", "Gla"]


@pytest.mark.parametrize("more", [["Gladly."], ["Gla", "Go on.", "Gladly."]])
async def test_the_title_and_the_tags_that_a_thread_was_given_here_stay(
    more: list[str], store: MemoryCheckpointer
) -> None:
    source = Told({"a": ["Plan a trip.", "Gla"]}, tags={"created_at": "2026"})
    await import_all(source, store)
    async with Thread.open(store, "told-a") as thread:
        await thread.append(Described("Mine", {**thread.checkpoint.tags, "mine": "yes"}), StatusChanged("done"))
    for said in (more, [*more, "And back?"]):
        source.texts["a"] = ["Plan a trip.", *said]
        assert (await import_all(source, store)).updated == ("told-a",)
    state = await Thread.load(store, "told-a")
    assert (state.title, state.tags["mine"], state.tags["created_at"]) == ("Mine", "yes", "2026")
    assert state.tags["imported_version"] == source.version("a")


async def test_a_conversation_that_is_only_named_anew_names_its_thread(store: MemoryCheckpointer) -> None:
    class Named(Told):
        title = "A trip"

        def version(self, key: str) -> str:
            return self.title

        def read(self, key: str) -> Conversation:
            found = super().read(key)
            return replace(found, entries=[Described(self.title), *found.entries[1:]])

    source = Named({"a": ["Plan a trip.", "Gladly."]})
    await import_all(source, store)
    source.title = "Paris"
    assert (await import_all(source, store)).updated == ("told-a",)
    assert (await Thread.load(store, "told-a")).title == "Paris"


async def test_values_and_places_follow_a_new_end(store: MemoryCheckpointer) -> None:
    class Valued(Told):
        """Has values of the thread and of turns, and the key of a program."""

        def read(self, key: str) -> Conversation:
            found = super().read(key)
            said = self.texts[key]
            values = [StateSet("early", len(said[1]))]
            late = [StateSet("mood", said[-1], "turn"), ProviderKey("codex", "k", messages=len(said))]
            entries = [*found.entries[:2], *values, *found.entries[2:-1], *late, found.entries[-1]]
            return replace(found, entries=entries)

    source = Valued({"a": ["Plan a trip.", "Gla"]}, losses=["a picture"])
    await import_all(source, store)
    async with Thread.open(store, "told-a") as thread:
        await thread.append(StateSet("mine", 1), StatusChanged("done"))
    source.texts["a"] = ["Plan a trip.", "Gladly.", "And back?", "By train."]
    source.losses = ()
    assert (await import_all(source, store)).failed == {}
    state = await Thread.load(store, "told-a")
    assert state.state == {"early": len("Gladly."), "mine": 1, LOSSES: None}
    assert state.metadata == {2: {"mood": "By train."}}
    assert state.providers["codex"].messages == len(state.history) == 5
    assert fold([], state) == state
