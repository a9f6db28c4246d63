"""Responses: what real payloads become, and how the rules of the API are kept."""

from __future__ import annotations

from typing import Any

import pytest

from clew.errors import InvalidInput
from clew.messages import (
    File,
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool,
    user,
)
from clew.messages.dialects import from_dialect, losses, to_dialect
from clew.messages.dialects.arrange import NO_RESULT
from tests.messages.dialects import vendors

OUTPUT = [
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}],
        "encrypted_content": "gAAAAABo",
    },
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "phase": "commentary",
        "content": [
            {
                "type": "output_text",
                "text": "Look:",
                "annotations": [{"type": "url_citation", "start_index": 0, "end_index": 4, "title": "t", "url": "u"}],
            },
            {"type": "output_text", "text": "more", "annotations": []},
        ],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "f",
        "arguments": '{"a": 1}',
        "status": "completed",
    },
    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch"},
]


def sent(*conversation: Message) -> list[Any]:
    payload: list[Any] = to_dialect(conversation, "openai-responses")
    vendors.check(payload, "openai-responses")
    return payload


def test_a_response_is_read_as_one_message() -> None:
    response = {"object": "response", "id": "resp_1", "model": "gpt-5", "status": "completed", "output": OUTPUT}
    (message,) = from_dialect(response, "openai-responses")
    assert (message.model, message.stop) == ("gpt-5", "completed")  # type: ignore[union-attr]
    thinking, search, first, second, call, custom = message.content
    assert isinstance(thinking, Thinking)
    assert (thinking.text, thinking.encrypted) == ("First.\n\nThen.", "gAAAAABo")
    assert search == Opaque("openai-responses", OUTPUT[1])
    assert isinstance(first, Text)
    assert isinstance(second, Text)
    assert (first.text, second.text, second.extra) == ("Look:", "more", None)
    assert isinstance(call, ToolCall)
    assert (call.id, call.arguments) == ("call_1", {"a": 1})
    assert isinstance(custom, ToolCall)
    assert custom.arguments == "*** Begin Patch"


def test_a_whole_conversation_goes_back_unchanged() -> None:
    payload = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look."},
                {"type": "input_image", "detail": "high", "image_url": "data:image/png;base64,iVBO"},
                {"type": "input_image", "detail": "auto", "file_id": "file-1"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
                {"type": "input_file", "file_url": "https://x.example/a.pdf"},
            ],
        },
        *OUTPUT,
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [
                {"type": "input_text", "text": "r"},
                {"type": "input_image", "detail": "auto", "image_url": "https://x"},
            ],
        },
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done!"},
        {"type": "message", "role": "assistant", "content": "Easy."},
        {
            "type": "message",
            "id": "msg_2",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "refusal", "refusal": "No."}],
        },
    ]
    conversation = from_dialect(payload, "openai-responses")
    assert losses(conversation, "openai-responses") == []
    assert to_dialect(conversation, "openai-responses") == payload
    vendors.check(payload, "openai-responses")


def test_items_as_codex_writes_them_are_read() -> None:
    payload = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Q1"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A1"}]},
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "out"},
    ]
    assert from_dialect(payload, "openai-responses") == (
        user("Q1"),
        assistant(Opaque("openai-responses", payload[1]), "A1", ToolCall("call_1", "exec_command", {"cmd": "ls"})),
        tool(ToolResult("call_1", (Text("out"),))),
    )


def test_input_may_be_a_text_or_leave_out_types() -> None:
    assert from_dialect("Hi", "openai-responses") == (user("Hi"),)
    assert from_dialect({"input": "Hi", "model": "gpt-5"}, "openai-responses") == (user("Hi"),)
    assert from_dialect([{"role": "user", "content": "Hi"}], "openai-responses") == (user("Hi"),)


def test_two_user_messages_in_a_row_stay_two_and_empty_ones_go() -> None:
    assert [item["content"][0]["text"] for item in sent(user("a"), user(""), user("b"))] == ["a", "b"]


def test_a_call_without_output_gets_one() -> None:
    assert sent(user("a"), assistant(ToolCall("t", "f", {})))[2] == {
        "type": "function_call_output",
        "call_id": "t",
        "output": NO_RESULT,
    }


def test_images_and_files_stay_in_results() -> None:
    result = ToolResult("t", (Text("r"), Image("image/png", b"x"), File("a.pdf", "application/pdf", b"%PDF")))
    conversation = (user("a"), assistant(ToolCall("t", "f", {})), tool(result))
    assert losses(conversation, "openai-responses") == []
    assert from_dialect(sent(*conversation), "openai-responses") == conversation


def test_thinking_of_other_vendors_is_left_out() -> None:
    payload = sent(user("a"), assistant(Thinking("hm", "sig"), Thinking(encrypted="sealed"), "b"))
    assert payload[1:] == [{"type": "message", "role": "assistant", "content": "b"}]


def test_thinking_that_nothing_follows_is_left_out() -> None:
    thinking = Thinking("hm", extra={"openai-responses": {"id": "rs_1"}})
    assert [item["type"] for item in sent(user("a"), assistant(thinking), user("b"))] == ["message", "message"]
    assert [item["type"] for item in sent(user("a"), assistant(thinking, "b"))] == ["message", "reasoning", "message"]


def test_an_item_id_is_sent_once() -> None:
    said = assistant(Text("b", {"openai-responses": {"message": {"id": "msg_1"}}}))
    payload = sent(user("a"), said, user("c"), said)
    assert [item.get("id") for item in payload] == [None, "msg_1", None, None]


def test_developer_is_remembered_and_system_stays_system() -> None:
    payload = [
        {"type": "message", "role": role, "content": [{"type": "input_text", "text": "x"}]}
        for role in ("developer", "system")
    ]
    conversation = from_dialect(payload, "openai-responses")
    assert [type(message) for message in conversation] == [type(system())] * 2
    assert to_dialect(conversation, "openai-responses") == payload


@pytest.mark.parametrize(
    ("payload", "amiss"),
    [
        ([{"type": "message", "content": "x"}], "item 0: the key 'role' is missing"),
        ([{"type": "message", "role": "user"}], "item 0: the key 'content' is missing"),
        ([{"type": "message", "role": "robot", "content": "x"}], "item 0: the value of 'role'"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "item 0: the key 'call_id' is missing"),
        ([{"type": "function_call_output", "call_id": "a"}], "item 0: the value of 'output' is not a list"),
        ([{"type": 5}], "item 0: the value of 'type' is not a text"),
        ([[]], "item 0 is not an object"),
        (5, "payload is not a list"),
    ],
)
def test_what_is_amiss_is_named_with_its_place(payload: Any, amiss: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_dialect(payload, "openai-responses")
    assert str(caught.value).startswith(amiss)
