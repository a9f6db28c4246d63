"""What opencode keeps is read to Clew's words, and Clew's words are written as opencode keeps them."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clew.messages import (
    File,
    Image,
    Json,
    Message,
    Opaque,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
    assistant,
    plain_text,
    system,
    tool,
    user,
)
from clew.providers.base import Conversation
from clew.providers.opencode import OpenCode
from clew.providers.opencode.convert import read, write
from clew.providers.opencode.database import Namer, is_session
from tests.providers.opencode.kept import ANSWERED, COMPACTED, FAILED, WITH_CHILD, change, machine
from tests.sampling import ON_SPEED, examples
from tests.strategies import messages

_KEY = "ses_e1fc8f750ffeAhQ8Y5xfhch0p1"
_FOLDERS = itertools.count()


def _kept(opencode: OpenCode, key: str, tmp_path: Path) -> Conversation:
    folder = tmp_path / f"kept-{next(_FOLDERS)}"
    assert opencode.export(key, folder)
    return opencode.read(folder)


def _written(conversation: Conversation, tmp_path: Path) -> Conversation:
    opencode = machine(tmp_path / f"machine-{next(_FOLDERS)}", empty=True)
    folder = tmp_path / f"written-{next(_FOLDERS)}"
    opencode.write(conversation, _KEY, folder)
    opencode.install_session(_KEY, folder)
    assert opencode.standing(_KEY, folder) == "same"
    return _kept(opencode, _KEY, tmp_path)


def test_a_real_session_is_read_with_thinking_calls_and_results(tmp_path: Path) -> None:
    conversation = _kept(machine(tmp_path), ANSWERED, tmp_path)
    first = conversation.messages[1]
    assert isinstance(first.content[0], Thinking)
    assert first.content[0].signature is not None
    assert [plain_text(message) for message in conversation.messages] == [
        *("Look around.", "Let me look.", "", "All done.", "And now?"),
        plain_text(conversation.messages[-1]),
    ]
    assert conversation.messages[2] == tool(
        ToolResult("toolu_1_1", (Text("found\n"),)),
        ToolResult("toolu_1_2", (Text("File not found: /home/ada/project/missing.txt"),), is_error=True),
    )
    assert (conversation.cwd, conversation.title) == ("/home/ada/project", "Looking around")
    assert conversation.model == "messages/claude-sonnet-4-5"
    assert conversation.created_at is not None
    assert conversation.created_at.year == 2026


def test_a_sub_agents_conversation_is_no_part_of_the_one_that_called_it(tmp_path: Path) -> None:
    conversation = _kept(machine(tmp_path), WITH_CHILD, tmp_path)
    assert [type(message).__name__ for message in conversation.messages] == ["User", "Assistant", "Tool", "Assistant"]


def test_a_summary_stands_for_what_it_sums_up(tmp_path: Path) -> None:
    conversation = _kept(machine(tmp_path), COMPACTED, tmp_path)
    words = [plain_text(message) for message in conversation.messages]
    assert words == ["What did we do so far?", "Looking around", "After the summary."]
    assert [loss.what for loss in conversation.losses] == ["2 earlier messages"]


def test_messages_that_opencode_keeps_beside_a_summary_stay(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    tail = f"(SELECT id FROM message WHERE session_id = '{COMPACTED}' ORDER BY time_created LIMIT 1 OFFSET 1)"
    change(
        opencode,
        f"UPDATE part SET data = json_set(data, '$.tail_start_id', {tail}) WHERE data LIKE '{{\"type\":\"compaction\"%'",
    )
    words = [type(message).__name__ for message in _kept(opencode, COMPACTED, tmp_path).messages]
    assert words == ["User", "Assistant", "Assistant", "Tool", "Assistant"]


def test_a_response_that_ended_in_an_error_is_no_part_of_the_conversation(tmp_path: Path) -> None:
    conversation = _kept(machine(tmp_path), FAILED, tmp_path)
    assert {type(message) for message in conversation.messages} == {User}


def test_what_the_user_took_back_is_no_part_of_the_conversation(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    last = f"(SELECT id FROM message WHERE session_id = '{ANSWERED}' AND data LIKE '%user%' ORDER BY id DESC LIMIT 1)"
    change(opencode, f"UPDATE session SET revert = json_object('messageID', {last}) WHERE id = '{ANSWERED}'")
    assert plain_text(_kept(opencode, ANSWERED, tmp_path).messages[-1]) == "All done."


@pytest.mark.parametrize(
    ("state", "results"),
    [
        ({"status": "running", "input": {}}, ()),
        ({"status": "pending", "input": {}, "raw": ""}, ()),
        ({"status": "error", "input": {}, "error": "no"}, (ToolResult("c", (Text("no"),), is_error=True),)),
        (
            {"status": "error", "input": {}, "error": "cut", "metadata": {"interrupted": True, "output": "half"}},
            (ToolResult("c", (Text("half"),)),),
        ),
        (
            {"status": "completed", "input": {}, "output": "long", "time": {"start": 1, "end": 2, "compacted": 3}},
            (ToolResult("c", (Text("[Old tool result content cleared]"),)),),
        ),
        (
            {
                "status": "completed", "input": {}, "output": "seen",
                "attachments": [{"type": "file", "mime": "image/png", "url": "data:image/png;base64,AAE="}],
            },
            (ToolResult("c", (Text("seen"), Image("image/png", b"\x00\x01"))),),
        ),
    ],
)  # fmt: skip
def test_a_call_is_read_with_what_its_state_says_of_it(
    tmp_path: Path, state: dict[str, object], results: tuple[ToolResult, ...]
) -> None:
    opencode = machine(tmp_path, empty=True)
    asked = Conversation(messages=(user("?"), assistant(ToolCall("c", "bash", {}))))
    opencode.write(asked, _KEY, tmp_path / "written")
    opencode.install_session(_KEY, tmp_path / "written")
    part = json.dumps({"type": "tool", "tool": "bash", "callID": "c", "state": state})
    change(opencode, f"UPDATE part SET data = '{part}', time_updated = 1 WHERE data LIKE '%callID%'")
    told = _kept(opencode, _KEY, tmp_path).messages
    assert told[1].content == (ToolCall("c", "bash", {}),)
    assert told[2:] == ((Tool(results),) if results else ())


def test_words_that_opencode_puts_beside_a_prompt_count_only_with_a_file(tmp_path: Path) -> None:
    opencode = machine(tmp_path, empty=True)
    opencode.write(
        Conversation(messages=(user("Look", "a reminder"), user("Read", "contents", "@file"))), _KEY, tmp_path / "w"
    )
    opencode.install_session(_KEY, tmp_path / "w")
    change(
        opencode,
        "UPDATE part SET data = json_set(data, '$.synthetic', json('true')) WHERE data LIKE '%reminder%'",
        "UPDATE part SET data = json_set(data, '$.synthetic', json('true')) WHERE data LIKE '%contents%'",
        'UPDATE part SET data = \'{"type":"file","mime":"text/plain","url":"file:///x"}\' WHERE data LIKE \'%@file%\'',
    )
    assert _kept(opencode, _KEY, tmp_path).messages == (user("Look"), user("Read", "contents"))


def test_a_conversation_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = Conversation(
        messages=(
            user("What is this?", Image("image/png", b"\x89PNG"), File("a.pdf", "application/pdf", b"%PDF")),
            assistant(
                Thinking("Hm.", "signed"),
                Thinking("", None, "sealed", {"openai-responses": {"id": "rs_1"}}),
                Thinking("", None, "redacted"),
                "Let me see.",
                ToolCall("c1", "bash", {"command": "ls"}),
                ToolCall("c2", "Strange", {}),
                model="anthropic/claude",
                stop="tool-calls",
            ),
            tool(
                ToolResult("c1", (Text("a"), Image("image/png", b"1"))),
                ToolResult("c2", (Text("failed"),), is_error=True),
            ),
            assistant("So.", model="anthropic/claude", stop="stop"),
        ),
        title="A title",
        cwd="/somewhere",
        created_at=datetime(2026, 11, 1, tzinfo=UTC),
        updated_at=datetime(2026, 11, 2, tzinfo=UTC),
    )
    assert write(written, _KEY, tmp_path / "direct") == ()
    back = _written(written, tmp_path)
    assert back.messages == written.messages
    assert (back.title, back.created_at) == (written.title, written.created_at)


def test_a_real_session_survives_being_read_and_written(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    for key in (ANSWERED, WITH_CHILD):
        real = _kept(opencode, key, tmp_path)
        assert _written(real, tmp_path).messages == real.messages


@settings(max_examples=examples(100), suppress_health_check=[*ON_SPEED, HealthCheck.function_scoped_fixture])
@given(st.lists(messages, max_size=6))
def test_a_conversation_is_worn_down_once_at_most(tmp_path: Path, given: list[Message]) -> None:
    def worn(conversation: Conversation) -> Conversation:
        folder = tmp_path / str(next(_FOLDERS))
        write(conversation, _KEY, folder)
        return read(folder)

    once = worn(Conversation(messages=tuple(given)))
    assert worn(once).messages == once.messages


def test_what_does_not_fit_is_told_with_its_place(tmp_path: Path) -> None:
    odd = (
        system("Be brief."),
        user(Image(file_id="file-1"), Opaque("anthropic", {"type": "new"}), File("n.txt", "text/plain", b"note")),
        assistant(Text("cited", {"anthropic": {"citations": []}}), ToolCall("c", "t", "no object"), Opaque("x", 1)),
        tool(ToolResult("c", (Image("image/png", b"1"), Json({"a": 1})), is_error=True), ToolResult("other")),
    )
    losses = write(Conversation(messages=odd), _KEY, tmp_path / "w")
    assert {(loss.message, loss.block) for loss in losses} == {
        *((0, None), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (3, 1)),
    }


def test_a_call_without_a_result_is_written_as_one_that_was_broken_off(tmp_path: Path) -> None:
    back = _written(Conversation(messages=(user("Go"), assistant(ToolCall("c", "bash", {})))), tmp_path)
    assert back.messages[2] == tool(ToolResult("c", (Text("Tool execution aborted"),), is_error=True))


def test_the_same_conversation_gives_the_same_folder(tmp_path: Path) -> None:
    conversation = Conversation(messages=(user("Hi"), assistant("Ho")), updated_at=datetime.now(UTC))
    for name in ("one", "two"):
        write(conversation, _KEY, tmp_path / name)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / name).rglob("*.json*")} for name in ("one", "two"))
    assert one == two


def test_names_are_in_order_and_before_all_that_will_be_made() -> None:
    round_of_digits = 2**36
    for at, present in [(5000, 9_000), (round_of_digits - 10, round_of_digits + 10), (9_999, 5_000)]:
        namer = Namer("seed", at, lambda present=present: present)  # type: ignore[misc]
        names = [namer.next("msg") for _ in range(5000)]
        assert names == sorted(names)
        assert len({name[:16] for name in names}) == len(names)
        assert namer.time // round_of_digits == present // round_of_digits
        assert namer.time <= present + 5


def test_a_new_key_has_opencodes_form_and_is_nobodys(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    keys = {opencode.new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(is_session(key) for key in keys)
