"""What is particular to Gemini's contents."""

from __future__ import annotations

from typing import Any

import pytest

from clew.errors import InvalidInput
from clew.messages import (
    Assistant,
    Block,
    File,
    Image,
    Json,
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

CALL = ToolCall("c1", "look", {"at": 1})
SIGNED = {"gemini": {"thoughtSignature": "QUJD"}}
GOOGLE = "https://generativelanguage.googleapis.com/v1beta/files/a"


def written(*content: Block | str) -> Any:
    return to_dialect([user(*content)], "gemini")["contents"][0]["parts"]


def read(*parts: dict[str, Any], role: str = "user") -> tuple[Block, ...]:
    (message,) = from_dialect([{"role": role, "parts": list(parts)}], "gemini")
    return message.content


def result_of(*content: Any, is_error: bool = False) -> Any:
    conversation = (user("a"), assistant(CALL), tool(ToolResult("c1", content, is_error)))
    assert from_dialect(to_dialect(conversation, "gemini"), "gemini") == conversation
    return to_dialect(conversation, "gemini")["contents"][2]["parts"][0]["functionResponse"]["response"]


def test_a_conversation_is_written_as_the_vendor_shows_it() -> None:
    conversation = (
        system("Be brief."),
        user("Look."),
        assistant(Thinking("Hm", extra={"gemini": {"thought": True}}), ToolCall("c1", "look", {"at": 1}, SIGNED)),
        tool(ToolResult("c1", (Text("A wall."),))),
        user("Sure?"),
        assistant("Yes."),
    )
    payload = to_dialect(conversation, "gemini")
    assert payload == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Look."}]},
            {
                "role": "model",
                "parts": [
                    {"text": "Hm", "thought": True},
                    {"functionCall": {"id": "c1", "name": "look", "args": {"at": 1}}, "thoughtSignature": "QUJD"},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "c1", "name": "look", "response": {"output": "A wall."}}},
                    {"text": "Sure?"},
                ],
            },
            {"role": "model", "parts": [{"text": "Yes."}]},
        ],
    }
    assert from_dialect(payload, "gemini") == conversation
    assert losses(conversation, "gemini") == []


@pytest.mark.parametrize(
    ("content", "is_error", "response"),
    [
        ((), False, {"output": ""}),
        ((Text("a"),), False, {"output": "a"}),
        ((Text("a"), Text("b")), False, {"output": ["a", "b"]}),
        ((Json({"n": 1}),), False, {"output": {"n": 1}}),
        ((Json(True),), False, {"output": True}),
        ((Json(["a"]),), False, {"output": [["a"]]}),
        ((Json(None),), False, {"output": [None]}),
        ((Text("a"), Json(1.5)), False, {"output": ["a", 1.5]}),
        ((Text("no"),), True, {"error": "no"}),
        ((Json({"code": 5}),), True, {"error": {"code": 5}}),
    ],
)
def test_a_result_is_an_output_or_an_error(content: Any, is_error: bool, response: Any) -> None:
    assert result_of(*content, is_error=is_error) == response


def test_an_image_in_a_result_follows_the_results_and_comes_back_into_it() -> None:
    picture = Image("image/png", b"\x89PNG")
    conversation = (user("a"), assistant(CALL), tool(ToolResult("c1", (Text("Here:"), picture))), user("b"))
    parts = to_dialect(conversation, "gemini")["contents"][2]["parts"]
    assert [next(iter(part)) for part in parts] == ["functionResponse", "text", "inlineData", "text"]
    assert from_dialect(to_dialect(conversation, "gemini"), "gemini") == conversation


def test_the_response_of_a_function_in_any_other_shape_is_its_output_as_a_whole() -> None:
    said = {"id": "c1", "name": "look", "response": {"wall": True, "error": "none"}}
    picture = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}
    (result,) = read({"functionResponse": {**said, "parts": [picture]}})
    whole = Json({"wall": True, "error": "none"})
    assert result == ToolResult("c1", (whole, Image("image/png", b"ABC")))


def test_calls_without_ids_get_some_and_their_responses_find_them() -> None:
    call: dict[str, Any] = {"functionCall": {"name": "look"}}
    answers: list[dict[str, Any]] = [
        {"functionResponse": {"name": "look", "response": {"output": text}}} for text in ("first", "second")
    ]
    other = {"functionCall": {"name": "hear", "args": {}}}
    contents = [
        {"role": "user", "parts": [{"text": "Go."}]},
        {"role": "model", "parts": [call, other, call]},
        {"role": "function", "parts": [answers[0], {"functionResponse": {"name": "hear"}}, answers[1]]},
    ]
    _, response, results = from_dialect(contents, "gemini")
    assert [call.id for call in response.content if isinstance(call, ToolCall)] == ["call_1_1", "call_1_2", "call_1_3"]
    assert results == Tool(
        (
            ToolResult("call_1_1", (Text("first"),)),
            ToolResult("call_1_2"),
            ToolResult("call_1_3", (Text("second"),)),
        )
    )


def test_a_response_is_read_with_its_model_its_reason_and_its_sources() -> None:
    sources = {"webSearchQueries": ["q"]}
    content = {"role": "model", "parts": [{"text": "Hi"}, {"text": "", "thoughtSignature": "QUJD"}]}
    candidate = {"content": content, "finishReason": "STOP", "groundingMetadata": sources, "avgLogprobs": -1}
    (message,) = from_dialect({"candidates": [candidate], "modelVersion": "gemini-4-argon"}, "gemini")
    said = Text("Hi", {"gemini": {"candidate": {"groundingMetadata": sources}}})
    assert message == Assistant((said, Thinking(extra=SIGNED)), "gemini-4-argon", "STOP")
    assert to_dialect([user("a"), message], "gemini")["contents"][1]["parts"] == content["parts"]
    assert from_dialect({"candidates": []}, "gemini") == ()
    assert from_dialect({"candidates": [{"finishReason": "SAFETY"}]}, "gemini") == (Assistant((), "", "SAFETY"),)


def test_both_spellings_and_both_alphabets_are_read() -> None:
    part = {"inline_data": {"mime_type": "image/png", "data": "-_8"}, "thought_signature": "-_8="}
    assert read(part, role="model") == (
        Image("image/png", b"\xfb\xff", extra={"gemini": {"thoughtSignature": "+/8="}}),
    )
    body = {"system_instruction": {"parts": [{"text": "S"}]}, "contents": [{"parts": [{"text": "a"}]}]}
    assert from_dialect(body, "gemini") == (System((Text("S"),)), User((Text("a"),)))


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (Image("image/heic", b"x"), {"inlineData": {"mimeType": "image/heic", "data": "eA=="}}),
        (
            Image("image/png", url="https://x.example/a"),
            {"fileData": {"mimeType": "image/png", "fileUri": "https://x.example/a"}},
        ),
        (Image("image/png", file_id=GOOGLE), {"fileData": {"mimeType": "image/png", "fileUri": GOOGLE}}),
        (File("", "video/mp4", b"x"), {"inlineData": {"mimeType": "video/mp4", "data": "eA=="}}),
        (File("", "text/csv", b"x"), {"inlineData": {"mimeType": "text/csv", "data": "eA=="}}),
        (
            File("", "video/mp4", url="https://youtu.be/x"),
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://youtu.be/x"}},
        ),
        (File(file_id="gs://bucket/a"), {"fileData": {"fileUri": "gs://bucket/a"}}),
    ],
)
def test_images_and_files_of_many_kinds_are_sent_and_come_back(block: Block, part: dict[str, Any]) -> None:
    assert written(block) == [part]
    assert read(part) == (block,)


@pytest.mark.parametrize(
    ("address", "media_type"),
    [
        ("https://x.example/a.webp?b=c", "image/webp"),
        ("https://x.example/a", "image/jpeg"),
        ("https://[", "image/jpeg"),
    ],
)
def test_the_type_of_an_image_is_guessed_from_its_address(address: str, media_type: str) -> None:
    assert written(Image(url=address)) == [{"fileData": {"mimeType": media_type, "fileUri": address}}]


@pytest.mark.parametrize("dialect", ["openai-chat", "openai-responses", "anthropic"])
def test_a_file_of_google_is_not_taken_for_one_of_another_vendor(dialect: Any) -> None:
    (loss,) = losses([user("a", Image("image/png", file_id=GOOGLE))], dialect)
    assert loss.what == "an image or file the API cannot take there"


def test_thoughts_are_not_sent_to_other_vendors() -> None:
    thinking = assistant(Thinking("Hm", extra={"gemini": {"thought": True}}), Thinking(extra=SIGNED), "Hi")
    assert to_dialect([user("a"), thinking], "anthropic") == to_dialect([user("a"), assistant("Hi")], "anthropic")


def test_a_picture_that_the_model_drew_goes_back_in_its_own_content() -> None:
    drawn = assistant("Here.", Image("image/png", b"x", extra=SIGNED))
    assert losses([user("Draw."), drawn], "gemini") == []
    assert from_dialect(to_dialect([user("Draw."), drawn], "gemini"), "gemini") == (user("Draw."), drawn)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (5, "payload is not a list"),
        ({}, "'contents' is missing"),
        ([{"role": "system", "parts": []}], "content 0: the value of 'role' is not user or model"),
        ([{"parts": [5]}], "content 0, part 0 is not an object"),
        (
            [{"parts": [{"text": "secret", "functionCall": {"name": "f"}}]}],
            "more than one kind of data: functionCall, text",
        ),
        ([{"parts": [{"functionCall": {"args": {}}}]}], "content 0, part 0: the key 'name' is missing"),
        ([{"parts": [{"text": 5}]}], "the value of 'text' is not a text"),
        ({"candidates": [5]}, "candidate 0 is not an object"),
    ],
)
def test_what_is_amiss_is_told_with_its_place(payload: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        from_dialect(payload, "gemini")
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_unknown_part_is_kept_whole() -> None:
    part = {"hologram": {"a": [None, 1]}}
    assert read(part) == (Opaque("gemini", part),)
    assert written(Opaque("gemini", part)) == [part]
