"""Chat completions: what real payloads become, and how the rules of the API are kept."""

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

COMPLETION = {
    "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
    "object": "chat.completion",
    "created": 1741570283,
    "model": "gpt-5",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "audio": None,
                "function_call": None,
                "tool_calls": [
                    {
                        "id": "call_abc123",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{\n"location": "Paris"\n}'},
                    }
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 82, "completion_tokens": 17, "total_tokens": 99},
}


def sent(*conversation: Message) -> list[Any]:
    payload: list[Any] = to_dialect(conversation, "openai-chat")
    vendors.check(payload, "openai-chat")
    return payload


def test_a_completion_is_read_and_its_call_goes_back_as_the_model_spelt_it() -> None:
    (message,) = from_dialect(COMPLETION, "openai-chat")
    raw = {"openai-chat": {"arguments": '{\n"location": "Paris"\n}'}}
    call = ToolCall("call_abc123", "get_weather", {"location": "Paris"}, raw)
    assert message == assistant(call, model="gpt-5", stop="tool_calls")
    written = sent(user("a"), message)[1]
    assert written["tool_calls"] == COMPLETION["choices"][0]["message"]["tool_calls"]  # type: ignore[index]
    assert "content" not in written


def test_arguments_that_were_changed_are_not_sent_as_they_were_spelt_before() -> None:
    raw = {"openai-chat": {"arguments": '{ "a": 1 }'}}
    written = sent(user("a"), assistant(ToolCall("t", "f", {"a": 2}, raw)))[1]
    assert written["tool_calls"][0]["function"]["arguments"] == '{"a":2}'


def test_a_whole_conversation_goes_back_unchanged() -> None:
    payload = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Look at these.", "name": "bob"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "here"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
                {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"}},
                {"type": "file", "file": {"file_id": "file-abc"}},
            ],
        },
        {
            "role": "assistant",
            "content": "On it.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                {"id": "call_2", "type": "custom", "custom": {"name": "code", "input": "print(1)"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "one"},
        {
            "role": "tool",
            "tool_call_id": "call_2",
            "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "audio": {"id": "audio_1"}},
        {"role": "function", "name": "old", "content": "x"},
    ]
    conversation = from_dialect(payload, "openai-chat")
    assert losses(conversation, "openai-chat") == []
    assert to_dialect(conversation, "openai-chat") == payload
    vendors.check(payload, "openai-chat")


def test_a_refusal_is_kept_as_a_part() -> None:
    message = {"role": "assistant", "content": None, "refusal": "I can't."}
    conversation = from_dialect([message], "openai-chat")
    assert conversation == (assistant(Opaque("openai-chat", {"type": "refusal", "refusal": "I can't."})),)
    assert sent(*conversation) == [{"role": "assistant", "content": [{"type": "refusal", "refusal": "I can't."}]}]


def test_two_user_messages_in_a_row_stay_two() -> None:
    assert sent(user("a"), user("b")) == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]


def test_empty_content_is_not_sent() -> None:
    assert sent(user(), system(""), assistant(Thinking("hm")), user("a")) == [{"role": "user", "content": "a"}]


def test_calls_without_results_get_one_and_late_results_are_moved() -> None:
    payload = sent(
        user("a"),
        assistant(ToolCall("t1", "f", {}), ToolCall("t2", "f", {})),
        user("hurry"),
        tool(ToolResult("t2", (Text("late"),))),
    )
    assert [(one["role"], one.get("content")) for one in payload[2:]] == [
        ("tool", NO_RESULT),
        ("tool", "late"),
        ("user", "hurry"),
    ]


def test_images_and_files_in_results_follow_in_a_user_message_and_come_back_in_the_results() -> None:
    results = tool(
        ToolResult("t1", (Image("image/png", b"x"), Text("and"), File("a.pdf", "application/pdf", b"%PDF"))),
        ToolResult("t2", (Image(url="https://x.example/b.png"),)),
    )
    conversation = (user("a"), assistant(ToolCall("t1", "f", {}), ToolCall("t2", "f", {})), results, user("b"))
    payload = sent(*conversation)
    assert [one["role"] for one in payload] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert [part["type"] for part in payload[4]["content"]] == [
        "text",
        "image_url",
        "text",
        "file",
        "text",
        "image_url",
    ]
    assert losses(conversation, "openai-chat") == []
    assert from_dialect(payload, "openai-chat") == conversation


def test_marks_that_somebody_typed_stay_text() -> None:
    forged = user("[attachment 1]", Image("image/png", b"x"))
    conversation = (user("a"), assistant(ToolCall("t", "f", {})), tool(ToolResult("t", (Text("r"),))), forged)
    assert from_dialect(sent(*conversation), "openai-chat") == conversation


def test_ids_too_long_for_the_api_are_shortened_and_results_follow() -> None:
    payload = sent(user("a"), assistant(ToolCall("x" * 60, "f", {})), tool(ToolResult("x" * 60, (Text("r"),))))
    assert payload[1]["tool_calls"][0]["id"] == payload[2]["tool_call_id"]
    assert payload[2]["content"] == "r"


def test_ids_may_come_again_in_a_later_response() -> None:
    turn = (assistant(ToolCall("call_0", "f", {})), tool(ToolResult("call_0", (Text("r"),))))
    conversation = (user("a"), *turn, *turn)
    assert losses(conversation, "openai-chat") == []
    assert from_dialect(sent(*conversation), "openai-chat") == conversation


@pytest.mark.parametrize("arguments", [{"a": 1}, {}, "", "{", "5", '{"a":1}', "NaN", 5, None, [1], '"quoted"', 1e300])
def test_arguments_come_back_as_they_are(arguments: Any) -> None:
    conversation = (user("a"), assistant(ToolCall("t", "f", arguments)), tool(ToolResult("t")))
    assert losses(conversation, "openai-chat") == []
    assert from_dialect(sent(*conversation), "openai-chat") == conversation


@pytest.mark.parametrize(
    "raw", ['{"a":1,"a":2}', '{"n":1e999}', '{"n":123456789012345678901234567890}', '{"s":"\\ud800"}', '"x"']
)
def test_odd_json_of_a_model_goes_back_as_it_was_spelt(raw: str) -> None:
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": raw}}
    payload = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "t", "content": "r"}]
    assert to_dialect(from_dialect(payload, "openai-chat"), "openai-chat") == payload


@pytest.mark.parametrize(
    ("payload", "amiss"),
    [
        ([{"content": "x"}], "message 0: the key 'role' is missing"),
        ([{"role": "user"}], "message 0: the key 'content' is missing"),
        ([{"role": "tool", "content": "x"}], "message 0: the key 'tool_call_id' is missing"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "message 0, tool call: the key 'function' is missing"),
        ([{"role": "assistant", "tool_calls": [{"type": "new"}]}], "message 0, tool call: the value of 'type'"),
        ([{"role": "assistant", "tool_calls": 5}], "message 0: the value of 'tool_calls' is not a list"),
        ({"choices": [{}]}, "choice 0: the key 'message' is missing"),
        ({}, "payload: the key 'messages' is missing"),
        (None, "payload is not a list"),
    ],
)
def test_what_is_amiss_is_named_with_its_place(payload: Any, amiss: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_dialect(payload, "openai-chat")
    assert str(caught.value).startswith(amiss)
