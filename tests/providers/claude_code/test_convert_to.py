"""Conversations as sessions that the program goes on with."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clew.errors import InvalidInput
from clew.messages import Message, Text, Thinking, ToolCall, ToolResult, assistant, system, tool, user
from clew.providers.base import Conversation
from tests.providers.claude_code.homes import SESSIONS, machine, tree

KEY = "11111111-2222-4333-8444-555555555555"
TALK = (
    user("Look."),
    assistant("I do.", ToolCall("toolu_1", "Bash", {"command": "ls"}), model="m", stop="tool_use"),
    tool(ToolResult("toolu_1", (Text("a.txt"),))),
    assistant("There is one.", model="m", stop="end_turn"),
)


def conversation(*messages: Message, **more: Any) -> Conversation:
    times = {"created_at": datetime(2026, 1, 2, tzinfo=UTC)}
    return Conversation(messages=messages, model="m", **{**times, **more})


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "session.jsonl").read_text().splitlines()]


def test_what_is_written_reads_the_same(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    assert claude.write(conversation(*TALK, cwd="/a", title="Files"), KEY, tmp_path / "folder") == ()
    back = claude.read(tmp_path / "folder")
    assert back.messages == TALK
    assert (back.cwd, back.title, back.model) == ("/a", "Files", "m")
    assert back.created_at == datetime(2026, 1, 2, tzinfo=UTC)


def test_a_row_has_the_name_of_the_model_that_its_response_is_of(tmp_path: Path) -> None:
    names = ("claude-a", "anthropic/claude-b", "anthropic:claude-c", "bedrock/us.anthropic.claude-d-v1:0", "")
    said = [each for name in names for each in (user("Q"), assistant(Thinking("Hm", "signed"), Text("A"), model=name))]
    lost = machine(tmp_path).write(Conversation(messages=tuple(said)), KEY, tmp_path / "folder")
    models = [row["message"]["model"] for row in rows(tmp_path / "folder") if row["type"] == "assistant"]
    assert models == ["claude-a", "claude-b", "claude-c", "us.anthropic.claude-d-v1:0", "unknown"]
    assert [(loss.message, loss.block, loss.what) for loss in lost] == [(9, 0, "thinking")]


def test_rows_form_one_chain_with_times_that_grow(tmp_path: Path) -> None:
    machine(tmp_path).write(conversation(*TALK), KEY, tmp_path / "folder")
    written = rows(tmp_path / "folder")
    assert [row["parentUuid"] for row in written] == [None, *(row["uuid"] for row in written[:-1])]
    stamps = [row["timestamp"] for row in written]
    assert stamps == sorted(set(stamps))
    assert {row["sessionId"] for row in written} == {KEY}


def test_the_same_conversation_is_the_same_bytes_and_a_longer_one_begins_with_them(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    for name, messages in [("a", TALK[:2]), ("b", TALK[:2]), ("c", TALK)]:
        claude.write(conversation(*messages), KEY, tmp_path / name)
    one, same, longer = ((tmp_path / name / "session.jsonl").read_bytes() for name in "abc")
    assert one == same
    assert longer.splitlines()[:2] == one.splitlines()[:2]


def test_a_session_of_the_program_goes_there_and_back(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    source = next((SESSIONS / "parallel-calls").glob("*.jsonl"))
    (folder / "session.jsonl").write_bytes(source.read_bytes())
    read = claude.read(folder)
    assert claude.write(read, KEY, tmp_path / "again") == ()
    assert claude.read(tmp_path / "again").messages == read.messages


def test_a_call_without_a_result_is_written_with_one_and_told(tmp_path: Path) -> None:
    losses = machine(tmp_path).write(conversation(*TALK[:2]), KEY, tmp_path / "folder")
    assert [loss.what for loss in losses] == ["a tool call without a result"]
    assert rows(tmp_path / "folder")[-1]["message"]["content"][0]["type"] == "tool_result"


def test_thinking_of_another_vendor_and_instructions_are_told_as_lost(tmp_path: Path) -> None:
    messages = (system("Be brief."), user("Hi"), assistant(Thinking("hm", encrypted="x"), "Hello"))
    losses = machine(tmp_path).write(conversation(*messages), KEY, tmp_path / "folder")
    assert [(loss.message, loss.what) for loss in losses] == [
        (0, "instructions at the start"),
        (2, "thinking without a signature"),
    ]
    assert [row["type"] for row in rows(tmp_path / "folder")] == ["user", "assistant"]


def test_nothing_of_a_former_session_is_left_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "folder" / "session" / "subagents").mkdir(parents=True)
    (tmp_path / "folder" / "session" / "subagents" / "agent-1.jsonl").write_text("{}\n")
    machine(tmp_path).write(conversation(*TALK), KEY, tmp_path / "folder")
    assert set(tree(tmp_path / "folder")) == {"session.jsonl"}


def test_a_key_that_is_no_uuid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="session ids are UUIDs"):
        machine(tmp_path).write(conversation(*TALK), "../../etc/passwd", tmp_path / "folder")
