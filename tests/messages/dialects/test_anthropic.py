"""Anthropic messages: what real payloads become, and how the rules of the API are kept."""

from __future__ import annotations

from typing import Any

import pytest

from clew.errors import InvalidInput
from clew.messages import (
    File,
    Image,
    Json,
    Message,
    Opaque,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
    assistant,
    system,
    tool,
    user,
)
from clew.messages.dialects import from_dialect, losses, to_dialect
from clew.messages.dialects.arrange import NO_RESULT
from tests.messages.dialects import vendors


def sent(*conversation: Message) -> list[Any]:
    payload = to_dialect(conversation, "anthropic")
    vendors.check(payload, "anthropic")
    messages: list[Any] = payload["messages"]
    return messages


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def call(call_id: str, name: str = "search") -> ToolCall:
    return ToolCall(call_id, name, {"q": 1})


RESPONSE: dict[str, Any] = {
    "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [
        {"type": "thinking", "thinking": "Let me look.", "signature": "EqQBCgIYAhIM"},
        {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3"},
        {"type": "text", "text": "Two cities.", "citations": None},
        {
            "type": "server_tool_use",
            "id": "srvtoolu_01",
            "name": "web_search",
            "input": {"query": "Paris"},
            "caller": {"type": "direct"},
        },
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_01", "content": []},
        {"type": "tool_use", "id": "toolu_01A", "name": "get_weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "toolu_01B", "name": "get_weather", "input": {"city": "Rome"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "output_tokens": 5},
}


def test_a_response_is_read_with_thinking_server_tools_and_parallel_calls() -> None:
    (message,) = from_dialect(RESPONSE, "anthropic")
    assert message == assistant(
        Thinking("Let me look.", "EqQBCgIYAhIM"),
        Thinking(encrypted="EmwKAhgBEgy3va3"),
        Text("Two cities."),
        Opaque("anthropic", RESPONSE["content"][3]),
        Opaque("anthropic", RESPONSE["content"][4]),
        ToolCall("toolu_01A", "get_weather", {"city": "Paris"}),
        ToolCall("toolu_01B", "get_weather", {"city": "Rome"}),
        model="claude-sonnet-4-5",
        stop="tool_use",
    )


def test_a_whole_turn_goes_back_unchanged() -> None:
    payload = {
        "system": [text("Be brief.", cache_control={"type": "ephemeral", "ttl": "1h"})],
        "messages": [
            {
                "role": "user",
                "content": [text("Weather?"), {"type": "image", "source": {"type": "url", "url": "https://x"}}],
            },
            {"role": "assistant", "content": [part for part in RESPONSE["content"] if part["type"] != "text"]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_01A",
                        "content": [
                            text("18 °C"),
                            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
                            {"type": "search_result", "source": "s", "title": "t", "content": [text("x")]},
                        ],
                    },
                    {"type": "tool_result", "tool_use_id": "toolu_01B", "content": [text("no")], "is_error": True},
                    text("Go on.", cache_control={"type": "ephemeral"}),
                ],
            },
            {"role": "assistant", "content": [text("18 °C in Paris.", citations=[{"type": "page_location"}])]},
        ],
    }
    conversation = from_dialect(payload, "anthropic")
    assert losses(conversation, "anthropic") == []
    assert to_dialect(conversation, "anthropic") == payload


def test_texts_are_read_as_strings_too() -> None:
    payload = {
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}],
    }
    assert from_dialect(payload, "anthropic") == (system("Be brief."), user("Hi"), assistant("Yo"))
    result = {"type": "tool_result", "tool_use_id": "a", "content": "out", "is_error": False}
    assert from_dialect([{"role": "user", "content": [result]}], "anthropic") == (
        tool(ToolResult("a", (Text("out"),))),
    )


def test_two_user_messages_in_a_row_become_one() -> None:
    assert sent(user("a"), user("b"), assistant("c"), assistant("d")) == [
        {"role": "user", "content": [text("a"), text("b")]},
        {"role": "assistant", "content": [text("c"), text("d")]},
    ]


def test_empty_content_is_not_sent() -> None:
    assert sent(user(), user("", " \n", "a"), assistant(), user("b")) == [
        {"role": "user", "content": [text("a"), text("b")]}
    ]


def test_a_conversation_that_the_model_begins_gets_a_user_first() -> None:
    messages = sent(assistant("Hello!"))
    assert [message["role"] for message in messages] == ["user", "assistant"]


def test_white_space_at_the_very_end_is_cut_and_nowhere_else() -> None:
    assert sent(user("a "), assistant("b "))[1]["content"] == [text("b")]
    assert sent(user("a "), assistant("b "), user("c"))[1]["content"] == [text("b ")]


def test_a_call_without_a_result_gets_an_error_result() -> None:
    result = sent(user("a"), assistant(call("t1"), call("t2")), tool(ToolResult("t2", (Text("ok"),))))[2]["content"]
    assert result == [
        {"type": "tool_result", "tool_use_id": "t1", "content": [text(NO_RESULT)], "is_error": True},
        {"type": "tool_result", "tool_use_id": "t2", "content": [text("ok")]},
    ]


def test_a_result_that_comes_late_or_out_of_order_is_moved_to_its_call() -> None:
    messages = sent(
        user("a"),
        assistant(call("t1"), call("t2")),
        user("hurry"),
        tool(ToolResult("t2"), ToolResult("t1")),
    )
    assert messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "t1"},
        {"type": "tool_result", "tool_use_id": "t2"},
        text("hurry"),
    ]


def test_a_result_without_its_call_becomes_text_with_its_images() -> None:
    image = Image("image/png", b"x")
    content = sent(user("a"), tool(ToolResult("gone", (Text("out"), image))))[0]["content"]
    assert [part["type"] for part in content] == ["text", "text", "text", "image"]


def test_ids_are_made_to_fit_and_unique_and_results_follow_them() -> None:
    messages = sent(
        user("a"),
        assistant(call("same"), call("same"), call(""), call("a/b")),
        tool(*(ToolResult(one, (Text(str(n)),)) for n, one in enumerate(["same", "same", "", "a/b"]))),
        assistant(call("same")),
        tool(ToolResult("same", (Text("later"),))),
    )
    ids = [part["id"] for part in messages[1]["content"]]
    assert ids[0] == "same"
    assert [(part["tool_use_id"], part["content"]) for part in messages[2]["content"]] == [
        (one, [text(str(n))]) for n, one in enumerate(ids)
    ]
    assert messages[3]["content"][0]["id"] not in ids


def test_an_id_does_not_change_when_the_conversation_grows() -> None:
    turn = (user("a"), assistant(call("a/b")), tool(ToolResult("a/b")))
    assert sent(*turn, *turn)[:2] == sent(*turn)[:2]


def test_names_and_arguments_are_made_to_fit() -> None:
    part = sent(user("a"), assistant(ToolCall("t", "fs.read/file", "not json")))[1]["content"][0]
    assert part == {"type": "tool_use", "id": "t", "name": "fs_read_file", "input": {"arguments": "not json"}}


def test_unsigned_thinking_and_that_of_other_vendors_is_left_out() -> None:
    foreign = Thinking("", None, "gAAAA", {"openai-responses": {"id": "rs_1"}})
    assert sent(user("a"), assistant(Thinking("hm"), foreign, "b"))[1]["content"] == [text("b")]


def test_thinking_that_nothing_follows_is_left_out() -> None:
    assert sent(user("a"), assistant(Thinking("hm", "sig")), user("b")) == [
        {"role": "user", "content": [text("a"), text("b")]}
    ]


def test_later_instructions_are_a_users_text_between_tags() -> None:
    payload = to_dialect((system("s"), user("a"), system("Be brief.")), "anthropic")
    assert payload == {
        "system": [text("s")],
        "messages": [{"role": "user", "content": [text("a"), text("<system>\nBe brief.\n</system>")]}],
    }
    assert from_dialect(payload, "anthropic")[1:] == (user("a", "<system>\nBe brief.\n</system>"),)


def test_a_system_role_among_the_messages_is_read() -> None:
    payload = {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}
    assert from_dialect(payload, "anthropic") == (user("a"), system("b"))


def test_images_in_error_results_follow_the_results_and_come_back_in_them() -> None:
    failed = tool(ToolResult("t", (Text("failed"), Image("image/png", b"x")), True))
    conversation = (user("a"), assistant(call("t")), failed, user("b"))
    content = sent(*conversation)[2]["content"]
    assert [part["type"] for part in content] == ["tool_result", "text", "image", "text"]
    assert from_dialect(to_dialect(conversation, "anthropic"), "anthropic") == conversation
    assert losses(conversation, "anthropic") == []


def test_documents_are_sent_as_the_api_knows_them() -> None:
    pdf = File("a.pdf", "application/pdf", b"%PDF")
    words = File("", "text/plain", "é".encode())
    link = File("", "application/pdf", url="https://x.example/a.pdf")
    uploaded = File(file_id="file_011C")
    parts = sent(user(pdf, words, link, uploaded))[0]["content"]
    assert [part["source"]["type"] for part in parts] == ["base64", "text", "url", "file"]
    assert from_dialect(to_dialect([user(pdf, words, link, uploaded)], "anthropic"), "anthropic") == (
        user(pdf, words, link, uploaded),
    )


@pytest.mark.parametrize(
    "block",
    [
        Image("image/tiff", b"x"),
        Image("image/png", b""),
        Image(file_id="file-openai"),
        File("a", "video/mp4", b"x"),
        Image(),
    ],
)
def test_what_the_api_cannot_take_is_named_in_words(block: Image | File) -> None:
    assert sent(user(block))[0]["content"][0]["text"].endswith("]")
    assert len(losses([user(block)], "anthropic")) == 1


def test_json_is_sent_as_text() -> None:
    result = ToolResult("t", (Json({"a": [1, None]}),))
    assert sent(user("a"), assistant(call("t")), tool(result))[2]["content"][0]["content"] == [text('{"a":[1,null]}')]


def test_blocks_in_the_wrong_role_become_text() -> None:
    messages = sent(
        User((call("t"), Thinking("hm", "s"))),
        System((call("t"),)),
        assistant(ToolResult("t", (Text("r"),)), Image("image/png", b"x")),
        Tool((Text("stray"),)),
    )
    assert {part["type"] for message in messages for part in message["content"]} == {"text"}


@pytest.mark.parametrize(
    ("payload", "amiss"),
    [
        ([{"content": "x"}], "message 0: the key 'role' is missing"),
        ([{"role": "user", "content": "x"}, {"role": "user"}], "message 1: the key 'content' is missing"),
        ([{"role": "robot", "content": "x"}], "message 0: the value of 'role'"),
        ([{"role": "user", "content": [{"text": "x"}]}], "message 0, part 0: the key 'type' is missing"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 0: the key 'text' is missing"),
        ([{"role": "user", "content": [{"type": "image"}]}], "message 0: the key 'source' is missing"),
        (
            [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}],
            "message 0: the key 'input' is missing",
        ),
        ([{"role": "user", "content": 5}], "message 0: the value of 'content' is not a list"),
        ([7], "message 0 is not an object"),
        ({}, "payload: the key 'messages' is missing"),
        ("x", "payload is not a list"),
    ],
)
def test_what_is_amiss_is_named_with_its_place(payload: Any, amiss: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_dialect(payload, "anthropic")
    assert str(caught.value).startswith(amiss)


def test_an_image_that_is_not_base64_is_kept_whole() -> None:
    part = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "not base64!"}}
    assert from_dialect([{"role": "user", "content": [part]}], "anthropic") == (user(Opaque("anthropic", part)),)
