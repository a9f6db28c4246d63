"""The conversations of the program `llm`, in logs that three of its versions wrote."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import pytest

from clew import Agent, Thread
from clew.checkpointers import MemoryCheckpointer
from clew.compat.importers import Conversation, import_all, open_source
from clew.errors import ClewError, Corrupt, InvalidInput
from clew.log import Checkpoint, Usage, fold
from clew.messages import Image, System, Text, Thinking, Tool, ToolCall, ToolResult, plain_text
from clew.testing import ModelServer
from tests.compat.importers.llm_logs import LOGS, PICTURE, unpacked
from tests.sampling import dice, sampled

pytestmark = pytest.mark.anyio

TOOLS = "the code of the tools, of which there are only the names (multiply, fail)"
OPTIONS = "the options of model calls (temperature=0.2)"


def read(name: str, folder: Path) -> dict[str, tuple[Conversation, Checkpoint]]:
    """Read a log's conversations, and fold them, by their titles."""
    unpacked(name, folder)
    return {state.title: (each, state) for each in read_all(folder) for state in [fold(each.entries)]}


def read_all(folder: Path) -> list[Conversation]:
    with open_source("llm", folder) as source:
        keys = source.keys()
        return [source.read(key) for key in keys]


def changed(name: str, folder: Path, *statements: str) -> Path:
    path = unpacked(name, folder)
    with closing(sqlite3.connect(path)) as log, log:
        for statement in statements:
            log.execute(statement)
    return path


def test_the_logs_are_of_three_versions_and_of_one_that_went_on_with_another() -> None:
    assert LOGS == ("llm-0.16", "llm-0.31.1", "llm-0.31.1-to-0.36", "llm-0.36")


@pytest.mark.parametrize("name", ["llm-0.16", "llm-0.31.1", "llm-0.36"])
def test_prompts_answers_and_system_prompts_are_carried_over(name: str, tmp_path: Path) -> None:
    conversation, state = read(name, tmp_path)["Plan a trip to Paris."]
    assert [plain_text(message) for message in state.messages if not isinstance(message, System)][:4] == [
        "Plan a trip to Paris.",
        "Answer 1 to Plan a trip to Paris.",
        "And to Rome?",
        "Answer 3 to And to Rome?",
    ]
    later = [plain_text(message) for message in state.messages if isinstance(message, System)]
    assert (state.system_prompt, later) == ("You are terse.", [] if name == "llm-0.36" else ["You are polite."])
    assert (state.agent, state.model, state.status, state.turns) == ("llm", "fake", "done", 3)
    assert state.tags["created_at"].startswith("2026-")
    assert conversation.thread_id.startswith("llm-01")
    assert conversation.losses == [OPTIONS]


def test_tokens_are_counted_and_a_cost_is_known_only_with_the_price(tmp_path: Path) -> None:
    found = read("llm-0.36", tmp_path)
    unpriced, priced = found["Plan a trip to Paris."][1], found["Think about it."][1]
    assert (unpriced.usage, unpriced.cost_usd) == (Usage(57, 20), None)
    assert (priced.model, priced.usage) == ("openai:gpt-5", Usage(3, 7, 0, 0, 4))
    assert priced.cost_usd == pytest.approx(7.375e-05)
    assert read("llm-0.16", tmp_path)["Plan a trip to Paris."][1].usage == Usage()


@pytest.mark.parametrize("name", ["llm-0.31.1", "llm-0.36"])
def test_tools_with_their_results_and_errors(name: str, tmp_path: Path) -> None:
    conversation, state = read(name, tmp_path)["How much is 6 times 7?"]
    asked, called, results, answer = state.messages
    assert called.content == (
        Text("I multiply."),
        ToolCall("call_1_1", "multiply", {"a": 6, "b": 7}),
        ToolCall("call_1_2", "fail", {}),
    )
    assert results == Tool(
        (
            ToolResult("call_1_1", (Text("42"),)),
            ToolResult("call_1_2", (Text("Error: it is broken"),), is_error=True),
        )
    )
    assert (plain_text(asked), plain_text(answer)) == ("How much is 6 times 7?", "The results are in.")
    assert conversation.losses == [TOOLS]


@pytest.mark.parametrize("name", ["llm-0.31.1", "llm-0.36"])
def test_attachments_fragments_and_schemas(name: str, tmp_path: Path) -> None:
    found = read(name, tmp_path)
    assert found["And this?"][1].messages[0].content == (Text("And this?"), Image("image/png", PICTURE + b"\1"))
    fragment, state = found["Roses are red. Go on with it."]
    assert state.system_prompt == "Roses are red."
    assert plain_text(state.messages[0]) == "Roses are red.\nGo on with it."
    assert fragment.losses == []
    assert found["A dog."][0].losses == ["the JSON schema of 1 answers"]
    pictures, state = found["What is this?"]
    assert state.messages[0].content[1:] == (Image("image/png", None, "http://127.0.0.1:9/cat.png"),)
    (loss,) = pictures.losses
    assert loss.startswith("2 attachments whose file is gone or has changed (")


@pytest.mark.parametrize("name", ["llm-0.31.1", "llm-0.36"])
def test_an_attached_file_is_read_only_if_it_is_the_same_as_then(name: str, tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(PICTURE)
    (tmp_path / "other.png").write_bytes(b"a secret of this machine")
    digest = sha256(PICTURE).hexdigest()
    changed(
        name,
        tmp_path,
        f"UPDATE attachments SET path = '{tmp_path / 'dot.png'}' WHERE id = '{digest}'",
        f"UPDATE attachments SET path = '{tmp_path / 'other.png'}' WHERE path LIKE '%gone.png'",
    )
    (conversation,) = [each for each in read_all(tmp_path) if fold(each.entries).title == "What is this?"]
    images = fold(conversation.entries).messages[0].content[1:]
    assert [(image.data, image.url) for image in images if isinstance(image, Image)] == [
        (PICTURE, None),
        (None, "http://127.0.0.1:9/cat.png"),
    ]
    assert conversation.losses == [f"1 attachments whose file is gone or has changed ({tmp_path / 'other.png'})"]


def test_reasoning_is_carried_over_and_what_only_the_vendor_understands_is_listed(tmp_path: Path) -> None:
    conversation, state = read("llm-0.36", tmp_path)["Think about it."]
    assert state.messages[1].content == (Thinking("Hmm. A hard one."), Text("I have thought."))
    assert conversation.losses == [
        "data of 1 parts that only the vendor understands, such as encrypted reasoning (openai)"
    ]


def test_a_conversation_that_a_newer_version_went_on_with_has_all_of_it(tmp_path: Path) -> None:
    before, after = read("llm-0.31.1", tmp_path), read("llm-0.31.1-to-0.36", tmp_path)
    assert before.keys() == after.keys()
    for title, (_, state) in before.items():
        grown = after[title][1]
        assert grown.messages[: len(state.messages)] == state.messages, title
        assert plain_text(grown.messages[-2]) == "What did we say?"
        assert grown.usage.output_tokens > state.usage.output_tokens


async def test_threads_grow_when_a_newer_version_has_gone_on_with_their_conversations(tmp_path: Path) -> None:
    async with MemoryCheckpointer() as store:
        with open_source("llm", unpacked("llm-0.31.1", tmp_path)) as source:
            first = await import_all(source, store)
        with open_source("llm", unpacked("llm-0.31.1-to-0.36", tmp_path)) as source:
            second = await import_all(source, store)
            assert (second.updated, second.failed) == (first.ids, {})
            third = await import_all(source, store)
        assert third.skipped == first.ids
        async with MemoryCheckpointer() as fresh:
            with open_source("llm", tmp_path / "logs.db") as source:
                await import_all(source, fresh)
            for thread_id in first.ids:
                grown, whole = await Thread.load(store, thread_id), await Thread.load(fresh, thread_id)
                assert (grown.messages, grown.usage, grown.tags) == (whole.messages, whole.usage, whole.tags)


@pytest.mark.parametrize("name", LOGS)
async def test_every_conversation_can_be_gone_on_with(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses what the vendors would refuse, such as a call without its result."""
    with open_source("llm", unpacked(name, tmp_path)) as source, ModelServer(lambda request: "Gladly.") as server:
        for variable, value in server.env().items():
            monkeypatch.setenv(variable, value)
        async with MemoryCheckpointer() as store:
            done = await import_all(source, store)
            for model in ("openai:gpt-5", "openai-responses:gpt-5", "anthropic:claude-opus-4-7"):
                async with Agent(model, checkpointer=store) as agent:
                    for thread_id in done.ids:
                        before = len((await Thread.load(store, thread_id)).messages)
                        result = await agent.run(f"What says {model}?", thread_id=thread_id)
                        assert (result.status, result.output) == ("done", "Gladly.")
                        assert len((await Thread.load(store, thread_id)).messages) == before + 2


def test_reading_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    path = unpacked("llm-0.36", tmp_path)
    before = path.read_bytes()
    with open_source("llm", path) as source:
        keys = source.keys()
        assert len({source.version(key) for key in keys}) == 7
        assert len([source.read(key) for key in keys]) == 7
    assert (path.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (before, ["logs.db"])


def test_calls_that_no_result_followed_are_in_doubt(tmp_path: Path) -> None:
    last = "SELECT id FROM turns WHERE thread_id = (SELECT id FROM threads WHERE name LIKE 'How much%') ORDER BY id"
    called = f"(SELECT tip_message_hash FROM turns WHERE id = ({last} LIMIT 1))"
    changed(
        "llm-0.36",
        tmp_path,
        f"UPDATE threads SET tip_message_hash = {called} WHERE name LIKE 'How much%'",
        f"DELETE FROM turns WHERE id = ({last} DESC LIMIT 1)",
    )
    (state,) = [state for each in read_all(tmp_path) for state in [fold(each.entries)] if state.calls]
    assert [(call.call.name, call.status) for call in state.calls] == [("multiply", "in_doubt"), ("fail", "in_doubt")]
    assert state.status == "interrupted"


def test_answers_that_were_left_aside_are_paid_for_and_listed(tmp_path: Path) -> None:
    first = "(SELECT tip_message_hash FROM turns ORDER BY id LIMIT 1)"
    changed("llm-0.36", tmp_path, f"UPDATE threads SET tip_message_hash = {first} WHERE name LIKE 'Plan%'")
    with open_source("llm", tmp_path) as source:
        conversation = source.read(source.keys()[0])
    state = fold(conversation.entries)
    assert (state.turns, state.usage) == (1, Usage(57, 20))
    assert conversation.losses[1].startswith("2 answers that are not part of the conversation as it is now (01")


def test_what_a_vendor_ran_itself_and_unknown_parts_are_listed(tmp_path: Path) -> None:
    payload = json.dumps({"name": "web_search", "arguments": {}, "server_executed": True})
    changed(
        "llm-0.36",
        tmp_path,
        f"UPDATE parts SET type = 'tool_call', payload = '{payload}' WHERE text = 'And to Rome?'",
        "UPDATE parts SET type = 'hologram' WHERE text = 'Now politely.'",
    )
    conversation = read_all(tmp_path)[0]
    assert conversation.losses == [
        OPTIONS,
        "1 calls of tools that the vendor ran itself, with their results (web_search)",
        "1 parts of messages of a kind that is not known (hologram)",
    ]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE messages SET parent_hash = hash WHERE parent_hash IS NULL", "chain of its messages breaks"),
        ("DELETE FROM messages WHERE parent_hash IS NULL", "chain of its messages breaks"),
        ("UPDATE parts SET payload = '{'", "is no JSON"),
        ("UPDATE turns SET options_json = '['", "is no JSON"),
    ],
)
async def test_a_damaged_conversation_is_named_and_the_import_goes_on(
    statement: str, said: str, tmp_path: Path
) -> None:
    changed("llm-0.36", tmp_path, statement)
    with open_source("llm", tmp_path) as source:
        with pytest.raises(Corrupt, match=said):
            source.read(source.keys()[0])
        async with MemoryCheckpointer() as store:
            done = await import_all(source, store)
    assert len(done.failed) == 7


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE parts SET text = x'ff00'", "UPDATE turns SET model = 5, input_tokens = 'many', token_details = '[1]'"],
        ["UPDATE attachments SET content = 7, path = x'00', type = 3", "UPDATE messages SET role = 9"],
        ["UPDATE threads SET name = 4, datetime_utc = 3", "UPDATE turns SET options_json = '3', datetime_utc = 1.5"],
        ['UPDATE parts SET payload = \'{"text_ref": 3, "attachment": [1], "name": 3}\''],
        ["DROP TABLE turns"],
        ["DROP TABLE fragments"],
        ["DROP TABLE attachments"],
    ],
)
async def test_odd_values_are_an_error_of_clew_or_none(statements: list[str], tmp_path: Path) -> None:
    changed("llm-0.36", tmp_path, *statements)
    with open_source("llm", tmp_path) as source:
        async with MemoryCheckpointer() as store:
            done = await import_all(source, store)
    assert len(done.ids) + len(done.failed) == 7


def no_file(folder: Path) -> None: ...


def a_text(folder: Path) -> None:
    (folder / "logs.db").write_text("This is no database. " * 100)


def another_database(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "logs.db")) as other, other:
        other.execute("CREATE TABLE log (id)")


def views(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "logs.db")) as other, other:
        other.execute("CREATE VIEW threads AS SELECT 1 AS id, 2 AS tip_message_hash")
        other.execute("CREATE VIEW responses AS SELECT 1 AS id, 2 AS conversation_id")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (no_file, "there is no such file"),
        (a_text, "it is no SQLite database"),
        (another_database, "it has neither"),
        (views, "it has neither"),
    ],
)
def test_what_is_not_a_log_of_llm_is_refused(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(InvalidInput, match=said):
        open_source("llm", tmp_path)


NESTED = json.dumps({"text_ref": [{"fragment": "x"}, 3], "attachment": {"id": 7}, "name": {}, "provider_metadata": [2]})
ODD = ["NULL", "-1", "1.5", "x'ff00'", "'{'", "'[1]'", "'null'", "'" + "[" * 5000 + "'", f"'{NESTED}'"]


@pytest.mark.parametrize("case", sampled(range(600), 25))
async def test_nothing_but_an_error_of_clew_comes_of_damage(case: int, tmp_path: Path) -> None:
    chance = dice(f"damaged llm {case}")
    path = unpacked(chance.choice(LOGS), tmp_path)
    if case % 3:
        with closing(sqlite3.connect(path)) as log:
            tables = log.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '%fts%'"
            ).fetchall()
            for _ in range(chance.choice([1, 2, 5])):
                table = chance.choice(tables)[0]
                column = chance.choice(log.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall())[0]
                some = chance.choice(["", " WHERE rowid % 2 = 0"])
                with suppress(sqlite3.Error), log:
                    log.execute(f'UPDATE OR REPLACE {table} SET "{column}" = {chance.choice(ODD)}{some}')
    else:
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice([1, 3, 30])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
    with suppress(ClewError):
        async with MemoryCheckpointer() as store:
            with open_source("llm", path) as source:
                done = await import_all(source, store)
            for thread_id in done.ids:
                assert (await Thread.verify(store, thread_id)).sound
