from __future__ import annotations

import pytest

from clew.errors import Unavailable
from clew.log import Usage
from clew.messages import Text, Thinking, ToolCall, ToolResult
from clew.providers.events import Failed, Finished, Other, ProviderEvent, Response, Result, Retry
from clew.providers.opencode.convert import Stored
from clew.providers.opencode.events import Children, OpenCodeReader
from tests.providers.opencode.kept import FIXTURES


def _nobody(session: str, since: int) -> list[Stored]:
    return []


def _read(name: str, *, status: int = 0, stderr: str = "", children: Children = _nobody) -> list[ProviderEvent]:
    reader = OpenCodeReader(children, lambda: "some/model")
    happened: list[ProviderEvent] = []
    for line in (FIXTURES / f"{name}.jsonl").read_bytes().splitlines(keepends=True):
        happened += reader.read(line)
    return [*happened, *reader.end(status, stderr)]


def test_an_answer_is_told_with_its_thinking_its_calls_and_the_tokens_of_all_its_steps() -> None:
    happened = _read("answer")
    responses = [happening.blocks[0] for happening in happened if isinstance(happening, Response)]
    assert [type(block) for block in responses] == [Thinking, Text, ToolCall, ToolCall, Thinking, Text]
    assert isinstance(responses[0], Thinking)
    assert responses[0].text == "Where am I?"
    assert responses[0].signature is not None
    assert responses[2:4] == [
        ToolCall("toolu_1_2", "read", {"filePath": "missing.txt"}),
        ToolCall("toolu_1_1", "bash", {"command": "echo found", "description": "look"}),
    ]
    assert [happening.result for happening in happened if isinstance(happening, Result)] == [
        ToolResult("toolu_1_2", (Text("File not found: /home/ada/project/missing.txt"),), is_error=True),
        ToolResult("toolu_1_1", (Text("found\n"),)),
    ]
    assert happened[-1] == Finished("All done.", Usage(14581, 30, 0, 0, 4), None, "some/model")


def test_blocks_of_one_step_are_parts_of_one_response() -> None:
    named = [happening.id for happening in _read("answer") if isinstance(happening, Response)]
    assert named[0] == named[1] == named[2] == named[3]
    assert named[3] != named[4] == named[5]


def test_a_cost_is_told_where_opencode_knows_the_price() -> None:
    reader = OpenCodeReader(_nobody)
    step = (
        b'{"type":"step_finish","part":{"reason":"%b","cost":%b,"tokens":{"input":5,"output":2,"reasoning":1,'
        b'"cache":{"read":10,"write":3}}}}'
    )
    reader.read(step % (b"tool-calls", b"0.25"))
    reader.read(step % (b"stop", b"0.5"))
    assert list(reader.end(0, "")) == [Finished("", Usage(36, 6, 20, 6, 2), 0.75)]


@pytest.mark.parametrize(
    ("name", "status", "kind", "reason"),
    [
        ("login", 1, "login", "wrong key (status 401)"),
        ("overflow", 1, "context", "This model's maximum context length is 128000 tokens. However, your messages "
         "resulted in 130000 tokens. Please reduce the length of the messages."),
        ("refused", 0, "failed", "The user rejected permission to use this specific tool call."),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_a_failure_of_its_kind(name: str, status: int, kind: str, reason: str) -> None:
    failed = _read(name, status=status)[-1]
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.reason) == (kind, reason)


def test_a_response_that_breaks_off_is_told_as_tried_again_and_as_failed_when_opencode_gives_up() -> None:
    happened = _read("broken", status=1)
    assert happened[:-1] == [Retry("the response broke off")] * 5
    assert isinstance(happened[-1], Failed)
    assert "The server had an error" in happened[-1].reason


def test_responses_that_break_off_for_ever_are_a_failure_which_is_told_once() -> None:
    reader = OpenCodeReader(_nobody)
    happened: list[ProviderEvent] = []
    for _ in range(30):
        happened += reader.read(b'{"type":"step_start","part":{"messageID":"msg_1"}}')
    happened += reader.end(-15, "")
    assert [type(happening) for happening in happened if not isinstance(happening, Retry)] == [Failed]


def test_words_that_opencode_puts_to_the_model_after_a_summary_are_no_answer() -> None:
    happened = _read("compacted")
    assert isinstance(happened[-1], Finished)
    assert happened[-1].text == "After the summary."
    said = [
        block.text
        for each in happened
        if isinstance(each, Response)
        for block in each.blocks
        if isinstance(block, Text)
    ]
    assert not any("Continue if you have next steps" in words for words in said)


def test_a_program_that_dies_after_a_summary_has_not_answered() -> None:
    reader = OpenCodeReader(_nobody)
    for line in (FIXTURES / "compacted.jsonl").read_bytes().splitlines()[:7]:
        list(reader.read(line))
    (failed,) = reader.end(-9, "")
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.reason) == ("stopped", "opencode was ended by SIGKILL")
    assert failed.usage == Usage(199516, 13)


def test_a_session_that_is_not_there_is_told_as_that() -> None:
    reader = OpenCodeReader(_nobody)
    assert list(reader.end(1, "\x1b[91m\x1b[1mError: \x1b[0mSession not found\n")) == [
        Failed("session", "Session not found")
    ]


def test_lines_that_are_no_events_are_kept_as_they_came() -> None:
    reader = OpenCodeReader(_nobody)
    lines = [b"not JSON\n", b"\n", b"[1]", b'{"type":"new"}', b'{"type":"text","part":7}', b'{"type":"tool_use"}']
    happened = [happening for line in lines for happening in reader.read(line)]
    assert happened[:3] == [Other("not JSON\n"), Other([1]), Other({"type": "new"})]


def test_a_sub_agent_whose_session_cannot_be_read_does_not_stop_the_reading() -> None:
    def broken(session: str, since: int) -> list[Stored]:
        raise Unavailable("locked")

    happened = _read("sub-agent", children=broken)
    assert isinstance(happened[-1], Finished)
    assert any(isinstance(happening, Other) and happening.value["reason"] == "locked" for happening in happened)
