"""Rollouts read to conversations, and conversations written as rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clew.errors import Corrupt
from clew.messages import (
    Assistant,
    File,
    Image,
    Message,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    assistant,
    plain_text,
    system,
    tool,
    tool_calls,
    user,
)
from clew.providers.base import Conversation
from tests.providers.codex.kept import FIXTURES, at_home, rollout_line

KEY = "01a1e046-0000-7000-8000-000000000001"
PIXEL = b"\x89PNG\r\n\x1a\n" + b"\0" * 16


def folder_of(tmp_path: Path, data: bytes) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    (folder / "rollout.jsonl").write_bytes(data)
    return folder


def read(tmp_path: Path, *payloads: tuple[str, dict[str, Any]]) -> tuple[Message, ...]:
    meta = rollout_line("session_meta", {"id": KEY, "timestamp": "2026-11-15T17:00:00Z", "cwd": "/x"})
    data = meta + b"".join(rollout_line(kind, payload) for kind, payload in payloads)
    return at_home(tmp_path).read(folder_of(tmp_path, data)).messages


def message(role: str, text: str) -> tuple[str, dict[str, Any]]:
    kind = "output_text" if role == "assistant" else "input_text"
    return "response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_a_session_is_its_prompts_responses_and_results_without_what_codex_adds(tmp_path: Path) -> None:
    conversation = at_home(tmp_path).read(folder_of(tmp_path, (FIXTURES / "rollout-tools.jsonl").read_bytes()))
    shape = [type(one).__name__ for one in conversation.messages]
    assert shape == ["User", *["Assistant", "Tool"] * 7, "Assistant", "User", *["Assistant", "Tool"] * 2, "Assistant"]
    first, looked, result = conversation.messages[:3]
    assert first == user("Look around, then patch.")
    assert [type(block) for block in looked.content] == [Thinking, Text, ToolCall]
    (thought, *_) = looked.content
    assert isinstance(thought, Thinking)
    assert (thought.text, thought.encrypted) == ("I should look.", "SSBzaG91bGQgbG9vay4=")
    assert "hi there" in str(result.content)
    calls = [made for one in conversation.messages for made in tool_calls(one)]
    assert [made.name for made in calls] == [
        "exec_command",
        "update_plan",
        "apply_patch",
        "update_plan",
        "mcp__e__echo",
        "mcp__e__fail",
        "web_search",
        "spawn_agent",
        "wait_agent",
    ]
    assert calls[0].extra is None
    assert (conversation.cwd, conversation.model) == ("/home/user/project", "gpt-5.5")
    assert conversation.title == "Look around, then patch."
    assert conversation.created_at is not None
    assert conversation.updated_at is not None
    assert conversation.created_at < conversation.updated_at


def test_after_a_compaction_the_summary_stands_for_what_was_before_it(tmp_path: Path) -> None:
    conversation = at_home(tmp_path).read(folder_of(tmp_path, (FIXTURES / "rollout-compacted.jsonl").read_bytes()))
    texts = [plain_text(one) for one in conversation.messages]
    assert texts[0] == "one"
    assert texts[1].startswith("A summary of what came before")
    assert texts[2:] == ["two", "Summary or answer."]


def test_a_compaction_of_an_older_version_keeps_the_prompts(tmp_path: Path) -> None:
    summary = ("compacted", {"message": "They counted."})
    got = read(tmp_path, message("user", "Count."), message("assistant", "One."), summary, message("user", "On."))
    assert got == (user("Count."), user("They counted."), user("On."))


def test_turns_that_were_taken_back_are_gone(tmp_path: Path) -> None:
    back = ("event_msg", {"type": "thread_rolled_back", "num_turns": 1})
    said = [message("user", "a"), message("assistant", "A"), message("user", "b"), message("assistant", "B")]
    assert read(tmp_path, *said, back) == (user("a"), assistant("A"))


def test_texts_of_the_program_are_known_in_versions_that_did_not_mark_them(tmp_path: Path) -> None:
    said = [
        message("developer", "<permissions instructions>…"),
        message("user", "<user_instructions>\nrules\n</user_instructions>"),
        message("user", "<environment_context>\n…"),
        message("user", "<b>bold</b> is a tag of mine"),
    ]
    assert read(tmp_path, *said) == (user("<b>bold</b> is a tag of mine"),)


def test_calls_in_other_forms_are_calls_with_their_outputs(tmp_path: Path) -> None:
    action = {"type": "exec", "command": ["ls"]}
    items: list[dict[str, Any]] = [
        {"type": "local_shell_call", "call_id": "c1", "status": "completed", "action": action},
        {"type": "function_call_output", "call_id": "c1", "output": {"content": "notes", "success": True}},
        {"type": "image_generation_call", "id": "ig_1", "revised_prompt": "a cat", "result": "iVBORw0KGgo="},
        {"type": "ghost_snapshot"},
    ]
    got = read(tmp_path, *(("response_item", item) for item in items))
    assert got[:2] == (assistant(ToolCall("c1", "local_shell", action)), tool(ToolResult("c1", (Text("notes"),))))
    assert got[2] == assistant(ToolCall("ig_1", "image_generation", {"prompt": "a cat"}))
    assert got[3] == tool(ToolResult("ig_1", (Image("image/png", b"\x89PNG\r\n\x1a\n"),)))


def test_reasoning_without_an_id_is_read_and_its_words_are_kept(tmp_path: Path) -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "abc"}
    got = read(tmp_path, ("response_item", item), message("assistant", "Yes."))
    assert got == (assistant(Thinking("Hm.", None, "abc"), "Yes."),)


def test_lines_that_were_cut_are_passed_over_and_damaged_ones_are_named(tmp_path: Path) -> None:
    data = (FIXTURES / "rollout-compacted.jsonl").read_bytes()
    whole = at_home(tmp_path).read(folder_of(tmp_path, data)).messages
    rows = data.splitlines(keepends=True)
    cut = [
        *rows[:-1],
        b'{"timestamp":"2026-11-15T1\n',
        rows[-1],
        '{"type":"response_item","payload":"\u00e9'.encode()[:-1],
    ]
    assert at_home(tmp_path).read(folder_of(tmp_path, b"".join(cut))).messages == whole
    damaged = folder_of(tmp_path, b"".join([*rows[:2], b'{"type":]]\n', *rows[2:]]))
    with pytest.raises(Corrupt, match=r"rollout\.jsonl, line 3 is damaged"):
        at_home(tmp_path).read(damaged)


@pytest.mark.parametrize("data", [b"", b"{}\n", b'{"type":"user","message":{}}\n', b"\xff\xfe"])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Corrupt, match="is not a session of Codex"):
        at_home(tmp_path).read(folder_of(tmp_path, data))
    with pytest.raises(Corrupt, match="holds no session of Codex"):
        at_home(tmp_path).read(tmp_path / "absent")


def test_a_conversation_that_is_written_comes_back_the_same(tmp_path: Path) -> None:
    sealed = Thinking("Hm.", None, "abc", {"openai-responses": {"id": "rs_1"}})
    custom = {"openai-responses": {"type": "custom_tool_call"}}
    messages = (
        system("Be kind."),
        user("What is this?", Image("image/png", PIXEL)),
        assistant(
            sealed, "Let me see.", ToolCall("c1", "Read", {"path": "a"}), ToolCall("c2", "apply_patch", "*** P", custom)
        ),
        tool(ToolResult("c1", (Text("é"), Image("image/png", PIXEL))), ToolResult("c2", (Text("done"),))),
        assistant("A picture."),
        user("<environment> is a word of mine"),
    )
    codex = at_home(tmp_path)
    assert codex.write(Conversation(messages=messages, cwd="/home/me"), KEY, tmp_path / "folder") == ()
    back = codex.read(tmp_path / "folder")
    assert (back.messages, back.cwd, back.title) == (messages, "/home/me", "What is this?")


def test_what_codex_has_no_place_for_is_told(tmp_path: Path) -> None:
    report = File("report.pdf", "application/pdf", b"%PDF")
    messages = (
        user("Read it.", report),
        assistant(Thinking("Hm.", "signed"), ToolCall("c1", "Read", {})),
        tool(ToolResult("c1", (report,), is_error=True)),
    )
    codex = at_home(tmp_path)
    lost = codex.write(Conversation(messages=messages), KEY, tmp_path / "folder")
    assert [(loss.message, loss.block) for loss in lost] == [(0, 1), (1, 0), (2, 0), (2, 0)]
    rows = [json.loads(row)["payload"] for row in (tmp_path / "folder/rollout.jsonl").read_bytes().splitlines()]
    assert "input_file" not in str(rows)
    assert "[file: report.pdf, application/pdf]" in str(rows)


def test_the_same_conversation_is_written_to_the_same_bytes(tmp_path: Path) -> None:
    conversation = at_home(tmp_path).read(folder_of(tmp_path, (FIXTURES / "rollout-tools.jsonl").read_bytes()))
    for name in ("one", "two"):
        at_home(tmp_path).write(conversation, KEY, tmp_path / name)
    assert (tmp_path / "one/rollout.jsonl").read_bytes() == (tmp_path / "two/rollout.jsonl").read_bytes()


def test_a_call_without_a_result_is_written_with_one_that_says_so(tmp_path: Path) -> None:
    codex = at_home(tmp_path)
    lost = codex.write(Conversation(messages=(user("Go."), assistant(ToolCall("c1", "Bash", {})))), KEY, tmp_path / "f")
    assert [loss.what for loss in lost] == ["a tool call without a result"]
    *_, last = codex.read(tmp_path / "f").messages
    assert isinstance(last, Tool)
    assert isinstance(codex.read(tmp_path / "f").messages[1], Assistant)
