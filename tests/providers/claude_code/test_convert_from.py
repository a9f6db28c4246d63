"""Sessions that the real program wrote, as conversations."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clew.errors import Corrupt
from clew.messages import Assistant, Image, Text, Thinking, Tool, ToolCall, ToolResult, User, plain_text, tool_calls
from clew.providers.base import Conversation
from clew.providers.claude_code import convert
from tests.providers.claude_code.homes import SESSIONS, key_of, machine


def read(tmp_path: Path, fixture: str) -> Conversation:
    return machine(tmp_path).read(folder_of(tmp_path, fixture))


def folder_of(tmp_path: Path, fixture: str) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copyfile(SESSIONS / fixture / f"{key_of(fixture)}.jsonl", folder / "session.jsonl")
    return folder


def read_rows(tmp_path: Path, *rows: dict[str, Any] | str) -> Conversation:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (tmp_path / "session.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return machine(tmp_path).read(tmp_path)


def said(uuid: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content}
    return {"type": role, "uuid": uuid, "parentUuid": parent, "message": message, **more}


def test_a_session_is_its_prompts_responses_and_results(tmp_path: Path) -> None:
    prompt, first, result, answer, again, second = read(tmp_path, "two-turns").messages

    assert prompt == User((Text("-what is 2+2? ünï"),))
    assert [type(block) for block in first.content] == [Thinking, Text, ToolCall]
    assert result == Tool((ToolResult("toolu_1_1", (Text("hello-out\n/home/user/work"),)),))
    assert [plain_text(message) for message in (answer, again, second)] == ["The answer is 4.", "again", "second"]


def test_a_conversation_knows_where_when_and_with_what_it_was_held(tmp_path: Path) -> None:
    found = read(tmp_path, "two-turns")
    assert found.cwd == "/home/user/other"
    assert found.title == "-what is 2+2? ünï"
    assert found.model == "claude-sonnet-4-5"
    assert found.created_at == datetime(2026, 11, 15, 17, 17, 46, 463000, tzinfo=UTC)
    assert found.updated_at is not None
    assert found.updated_at > found.created_at
    assert found.losses == ()


def test_calls_made_at_once_keep_all_their_results_in_the_order_of_the_calls(tmp_path: Path) -> None:
    """In the file each result hangs on its own call, and the line to the last message passes by all but one."""
    _, response, results, *_ = read(tmp_path, "parallel-calls").messages

    assert isinstance(results, Tool)
    answers = [block for block in results.content if isinstance(block, ToolResult)]
    assert [call.id for call in tool_calls(response)] == [answer.call_id for answer in answers]
    assert [answer.content for answer in answers[:2]] == [(Text("one"),), (Text("two"),)]
    assert isinstance(answers[2].content[0], Image)


def test_a_compacted_session_is_its_summary_what_was_kept_and_what_came_after(tmp_path: Path) -> None:
    found = read(tmp_path, "compacted")
    texts = [plain_text(message) for message in found.messages]
    assert texts[0].startswith("This session is being continued")
    assert texts[1:] == ["ok", "three", "ok"]
    assert [loss.what for loss in found.losses] == ["what was said before the conversation was compacted"]


def test_the_sub_agents_own_conversation_is_not_the_sessions(tmp_path: Path) -> None:
    texts = [plain_text(message) for message in read(tmp_path, "sub-agent").messages]
    assert texts == ["MAINPROMPT", "", "", "main done", "MAINPROMPT again", "main done"]


def test_a_call_that_was_running_at_the_end_is_there_without_a_result(tmp_path: Path) -> None:
    *_, last = read(tmp_path, "killed-in-a-tool").messages
    assert [call.name for call in tool_calls(last)] == ["Bash"]


def test_of_two_branches_the_one_that_ends_last_is_the_conversation(tmp_path: Path) -> None:
    found = read_rows(
        tmp_path,
        said("a", None, "user", "root"),
        said("b", "a", "assistant", [{"type": "text", "text": "left"}]),
        said("c", "a", "assistant", [{"type": "text", "text": "right"}]),
    )
    assert [plain_text(message) for message in found.messages] == ["root", "right"]


def test_rows_of_sidechains_in_the_same_file_are_left_out(tmp_path: Path) -> None:
    found = read_rows(
        tmp_path,
        said("a", None, "user", "root"),
        said("s", "a", "assistant", [{"type": "text", "text": "aside"}], isSidechain=True),
    )
    assert [plain_text(message) for message in found.messages] == ["root"]


def test_words_of_the_program_about_errors_are_no_response(tmp_path: Path) -> None:
    error = said("b", "a", "assistant", [{"type": "text", "text": "API Error: 400"}], isApiErrorMessage=True)
    error["message"]["model"] = "<synthetic>"
    found = read_rows(tmp_path, said("a", None, "user", "root"), error, said("c", "b", "user", "again"))
    assert [plain_text(message) for message in found.messages] == ["root", "again"]


def test_what_a_tool_showed_beside_its_result_stays(tmp_path: Path) -> None:
    """A document that was read comes to the model in a message that the program marks as its own."""
    source = {"type": "text", "media_type": "text/plain", "data": "words"}
    found = read_rows(
        tmp_path,
        said("a", None, "user", "read it"),
        said("b", "a", "assistant", [{"type": "tool_use", "id": "t", "name": "Read", "input": {}}]),
        said("c", "b", "user", [{"type": "tool_result", "tool_use_id": "t", "content": "read"}]),
        said("d", "c", "user", [{"type": "document", "source": source}], isMeta=True),
    )
    assert [type(message) for message in found.messages] == [User, Assistant, Tool, User]


@pytest.mark.parametrize("torn", ['{"type":"assis', '{"type":"user","message":{"role":"user","content":"\\u00'])
def test_a_torn_last_line_is_passed_over(tmp_path: Path, torn: str) -> None:
    (tmp_path / "session.jsonl").write_text(json.dumps(said("a", None, "user", "root")) + "\n" + torn)
    assert [plain_text(message) for message in machine(tmp_path).read(tmp_path).messages] == ["root"]


def test_a_damaged_line_that_nothing_hangs_on_is_passed_over(tmp_path: Path) -> None:
    """What the program leaves when it goes on behind a torn line."""
    torn = '{"parentUuid":"x","type":"assis{"type":"queue-operation","operation":"enqueue"}'
    found = read_rows(tmp_path, said("a", None, "user", "root"), torn, said("b", "a", "user", "more"))
    assert [plain_text(message) for message in found.messages] == ["root", "more"]


def test_a_damaged_line_that_the_conversation_hangs_on_is_corrupt_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match=r"session\.jsonl, line 2 is damaged"):
        read_rows(tmp_path, said("a", None, "user", "root"), '{"uuid":"b","par', said("c", "b", "user", "more"))


def test_a_file_of_something_else_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="line 1 is damaged"):
        read_rows(tmp_path, "SQLite format 3")


def test_a_folder_without_a_session_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match=r"no session\.jsonl in it"):
        machine(tmp_path).read(tmp_path)


def test_unknown_rows_and_blocks_do_not_stand_in_the_way(tmp_path: Path) -> None:
    found = read_rows(
        tmp_path,
        {"type": "tomorrow", "uuid": "t", "parentUuid": None, "what": [1]},
        said("a", "t", "user", [{"type": "hologram", "beam": 1}, {"type": "text", "text": "root"}]),
        {"type": "user", "note": "a row without an id"},
    )
    (message,) = found.messages
    assert plain_text(message) == "root"
    assert len(message.content) == 2


def test_rows_that_name_each_other_as_parents_end_somewhere(tmp_path: Path) -> None:
    found = read_rows(tmp_path, said("a", "b", "user", "one"), said("b", "a", "user", "two"))
    assert [plain_text(message) for message in found.messages] == ["one", "two"]


@pytest.mark.parametrize(
    ("rows", "title"),
    [
        ([{"type": "summary", "summary": "old"}], "old"),
        ([{"type": "ai-title", "aiTitle": "made"}, {"type": "summary", "summary": "old"}], "made"),
        ([{"type": "custom-title", "customTitle": "mine"}, {"type": "ai-title", "aiTitle": "made"}], "mine"),
        ([{"type": "ai-title", "aiTitle": "first"}, {"type": "ai-title", "aiTitle": "second"}], "second"),
        ([], "the prompt"),
    ],
)
def test_the_title_is_what_the_user_called_it_else_the_model_else_the_first_prompt(
    tmp_path: Path, rows: list[dict[str, Any]], title: str
) -> None:
    assert read_rows(tmp_path, said("a", None, "user", "the prompt\nand more"), *rows).title == title


def test_a_session_file_in_which_nothing_can_be_read_is_a_conversation_without_messages(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(b'"pa":{"id":')
    assert convert.read(path).messages == ()
