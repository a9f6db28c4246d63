"""What a dialect cannot say is told, with its place and in words; and dialects keep to their own."""

from __future__ import annotations

from typing import Any, cast

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
    assistant,
    system,
    tool,
    user,
)
from clew.messages.dialects import DIALECTS, Dialect, Loss, from_dialect, losses, to_dialect

PLAIN: tuple[Message, ...] = (
    system("Be brief."),
    user("Weather?", Image("image/png", b"x")),
    assistant(
        "Looking.", ToolCall("call_1", "weather", {"city": "Paris"}), ToolCall("call_2", "weather", {"city": "Rome"})
    ),
    tool(ToolResult("call_1", (Text("18"), Image("image/png", b"y"))), ToolResult("call_2", (Text("20"),))),
    assistant("18 and 20."),
)
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@each_dialect
def test_an_ordinary_conversation_loses_nothing(dialect: Dialect) -> None:
    assert losses(PLAIN, dialect) == []
    assert from_dialect(to_dialect(PLAIN, dialect), dialect) == PLAIN


def test_it_loses_nothing_on_a_journey_through_all() -> None:
    conversation = PLAIN
    for dialect in DIALECTS:
        conversation = from_dialect(to_dialect(conversation, cast(Dialect, dialect)), cast(Dialect, dialect))
    assert conversation == PLAIN


def test_a_loss_has_its_place_and_says_why() -> None:
    conversation = (user("a"), assistant(Thinking("hm"), "b"))
    (loss,) = losses(conversation, "openai-chat")
    assert loss == Loss(1, 0, "thinking", "chat completions have no place for it; it is left out")


OLDER = ("anthropic", "openai-chat", "openai-responses")
ALL = (*OLDER, "gemini")
A, C, R, G = ALL
CALL = ToolCall("t", "f", {})
PNG = Image("image/png", b"x")
IDENTIFIED = Text("b", {"openai-responses": {"message": {"id": "msg_1"}}})


def with_call(call: ToolCall = CALL, *content: Any, is_error: bool = False, extra: Any = None) -> tuple[Message, ...]:
    return (user("a"), assistant(call), tool(ToolResult(call.id, content, is_error, extra)))


def said(*content: Any) -> tuple[Message, ...]:
    return (user("a"), assistant(*content), user("b"))


ONE_LOSS: list[tuple[tuple[str, ...], tuple[Message, ...], str]] = [
    (ALL, (user(Json(1)),), "a JSON value"),
    (OLDER, with_call(CALL, Json({"a": 1})), "a JSON value"),
    (OLDER, said("b", PNG), "an image or file the API cannot take there"),
    (OLDER, said("b", File("a.pdf", "application/pdf", b"x")), "an image or file the API cannot take there"),
    (ALL, (System((PNG,)), user("a")), "an image or file the API cannot take there"),
    (ALL, (user(Image("image/tiff", b"x")),), "an image or file the API cannot take there"),
    (ALL, (user(File("a")),), "an image or file the API cannot take there"),
    ((C,), (user(Image(file_id="file-1")),), "an image or file the API cannot take there"),
    ((C,), (user(File(url="https://x.example")),), "an image or file the API cannot take there"),
    ((A,), (user(File("a", "video/mp4", b"x")),), "an image or file the API cannot take there"),
    (ALL, (user(Image("image/jpg", b"x")),), "a part of what is known of an image"),
    (ALL, (user(Image("image/png", b"x", "https://x.example")),), "a part of what is known of an image"),
    ((A,), (user(Image("image/png", file_id="file_1")),), "a part of what is known of an image"),
    ((R,), (user(Image("image/png", file_id="file-1")),), "a part of what is known of an image"),
    ((A,), (user(File("a", "text/csv", b"x")),), "a part of what is known of a file"),
    ((A,), (user(File("a", url="https://x.example")),), "a part of what is known of a file"),
    ((C, R), (user(File("", "application/pdf", b"x")),), "a part of what is known of a file"),
    ((R,), (user(File("a", url="https://x.example")),), "a part of what is known of a file"),
    (ALL, (user(Text("a", {"other": 1})),), "what a vendor said beside the block"),
    (ALL, said(Text("b", {"other": 1})), "what a vendor said beside the block"),
    (ALL, (user("a", Image("image/png", b"x", extra={"other": 1})),), "what a vendor said beside the block"),
    (OLDER, (user(File("a", "application/pdf", b"x", extra={"other": 1})),), "what a vendor said beside the block"),
    (ALL, with_call(ToolCall("t", "f", {}, {"other": 1})), "what a vendor said beside the block"),
    (ALL, with_call(CALL, extra={"other": 1}), "what a vendor said beside the block"),
    (ALL, with_call(CALL, Text("r", {"other": 1})), "what a vendor said beside the block"),
    ((A,), said(Thinking("hm", "s", extra={"other": 1}), "b"), "what a vendor said beside the block"),
    ((R,), said(Thinking("hm", extra={R: {"id": "rs_1"}, "other": 1}), "b"), "what a vendor said beside the block"),
    ((R,), said(Text("b", {R: {"annotations": [1]}})), "what a vendor said beside the block"),
    ((R,), (user("a", Text("b", {R: {"message": {"id": "msg_1"}}})),), "what a vendor said beside the block"),
    ((R,), said(Text("b", {R: {"message": {"id": "msg_1"}}, "other": 1})), "what a vendor said beside the block"),
    ((R,), said(IDENTIFIED, Text("c", {"other": 1})), "what a vendor said beside the block"),
    ((A,), (user("a", " "),), "a text of nothing but white space"),
    ((C, R), (user("a", Text("", {"other": 1})),), "an empty text with something beside it"),
    ((A,), said(Thinking("hm"), "b"), "thinking without a signature"),
    ((A,), said(Thinking("hm", "s", "e"), "b"), "the encrypted form of thinking"),
    ((A,), said(Thinking("", "", "e"), "b"), "an empty signature"),
    ((A,), said(Thinking("hm", "s")), "thinking that nothing follows"),
    ((R,), said(Thinking("hm", extra={R: {"id": "rs_1"}})), "thinking that nothing follows"),
    ((R,), said(Thinking("hm", "s", extra={R: {"id": "rs_1"}}), "b"), "the signature of thinking"),
    ((R,), said(Thinking("hm"), "b"), "thinking that this API did not give an id"),
    ((C,), said(Thinking("hm", "s"), "b"), "thinking"),
    (ALL, (user("a", Thinking("hm", "s")),), "thinking outside a response"),
    (ALL, (user("a", CALL),), "a tool call outside a response"),
    (ALL, (user("a", ToolResult("t")),), "a tool result without its call"),
    (ALL, said("b", ToolResult("t")), "a tool result without its call"),
    (ALL, (user("a"), assistant(CALL)), "a tool call without a result"),
    (ALL, (user("a"), assistant(CALL), user(ToolResult("t"))), "a tool result in a user message"),
    (ALL, (user("a"), assistant(CALL), user("b"), tool(ToolResult("t"))), "the place of a tool result"),
    (
        ALL,
        (user("a"), assistant(CALL, ToolCall("u", "f", {})), tool(ToolResult("u"), ToolResult("t"))),
        "the place of a tool result",
    ),
    (ALL, with_call(ToolCall("", "f", {})), "the id of a tool call"),
    ((A, R), with_call() + with_call(), "the id of a tool call"),
    (ALL, with_call(ToolCall("t", "a.b", {})), "the name of a tool call"),
    ((A,), with_call(ToolCall("t", "f", "x")), "arguments that are not an object"),
    (ALL, with_call(ToolCall("t", "f", {"a": (1,)})), "arguments that are not JSON"),
    ((A,), with_call(is_error=True), "an error result without a word"),
    ((C, R), with_call(CALL, Text("r"), is_error=True), "that a result is an error"),
    ((A,), (assistant("a"), user("b")), "a conversation that the model begins"),
    ((A,), (user("a"), system("b")), "instructions in the middle"),
    ((A,), (user("a"), assistant("b ")), "white space at the very end"),
    (ALL, (user("a"), Tool((Text("b"),))), "a tool message with more than results"),
    ((C,), (user("a"), assistant(CALL, "b"), tool(ToolResult("t"))), "the place of what follows a call"),
    (ALL, (user("a", Opaque("other", {"type": "x"})),), "a block that only another vendor knows"),
    (ALL, with_call(CALL, Opaque("other", {"type": "x"})), "a block that only another vendor knows"),
    ((A,), (user("a", Opaque(A, {"type": "text", "text": "b"})),), "an opaque block that has a name"),
    ((A,), (user("a", Opaque(A, {"type": "server_tool_use"})),), "a block the API does not take there"),
    ((C,), (user("a", Opaque(C, {"type": "refusal", "refusal": "b"})),), "a block the API does not take there"),
    ((C,), with_call(CALL, Opaque(C, {"type": "input_audio"})), "a block the API does not take there"),
    ((C,), (user("a", Opaque(C, {"message": {"name": "b"}})),), "what a vendor said of the message"),
    ((C,), (user("a"), user(Opaque(C, {"message": {"name": "b"}}))), "what a vendor said of the message"),
    ((C,), (user(Opaque(C, {"message": {}}), "a"),), "what a vendor said of the message"),
    ((C,), said(Opaque(C, {"message": {"name": "b"}})), "what a vendor said of the message"),
    ((R,), (user("a"), user(Opaque(R, {"type": "web_search_call"}))), "the message that an item is in"),
    ((R,), (*said(Opaque(R, {"type": "x_call", "id": "1"})) * 2,), "an item with an id that is taken"),
    ((G,), with_call(CALL, Json("a")), "a JSON value"),
    ((G,), with_call(CALL, Json({"a": (1,)})), "a JSON value"),
    ((G,), said("b", Image("image/png", url="https://x.example")), "an image or file the API cannot take there"),
    ((G,), (user(Image("image/gif", b"x")),), "an image or file the API cannot take there"),
    ((G,), (user(Image(file_id="file_1")),), "an image or file the API cannot take there"),
    ((G,), (user(File("", "application/zip", b"x")),), "an image or file the API cannot take there"),
    ((G,), (user(Image(url="https://x.example/a.png")),), "a part of what is known of an image"),
    ((G,), (user(File("a", "application/pdf", b"x")),), "a part of what is known of a file"),
    ((G,), (user(File("", "application/json", b"{}")),), "a part of what is known of a file"),
    ((G,), (user("a", Text("", {"other": 1})),), "an empty text with something beside it"),
    ((G,), said(Text("b", {G: {"candidate": {"groundingMetadata": {}}}})), "what a vendor said beside the block"),
    ((G,), with_call(CALL, Text("r", {G: {"thoughtSignature": "QUJD"}})), "what a vendor said beside the block"),
    ((G,), said(Thinking("hm", "s"), "b"), "thinking that this API did not give"),
    ((G,), said(Thinking("hm", "s", extra={G: {"thought": True}}), "b"), "the signature of thinking"),
    ((G,), with_call(ToolCall("t", "1st", {})), "the name of a tool call"),
    ((G,), with_call(ToolCall("t", "f", "x")), "arguments that are not an object"),
    ((G,), with_call() + with_call(), "the id of a tool call"),
    ((G,), with_call(is_error=True), "an error result without a word"),
    ((G,), (assistant("a"), user("b")), "a conversation that the model begins"),
    ((G,), (user("a"), system("b")), "instructions in the middle"),
    ((G,), (user("a", Opaque(G, {"text": "b"})),), "an opaque block that has a name"),
    ((G,), (user("a", Opaque(G, {"executableCode": {}})),), "a block the API does not take there"),
]
MARK = "[attachment 1: see the user message after the tool results]"
FORGED = (*with_call(CALL, Text(MARK)), user("[attachment 1]", PNG))


@pytest.mark.parametrize(
    ("dialect", "conversation", "what"), [(dialect, *rest) for dialects, *rest in ONE_LOSS for dialect in dialects]
)
def test_each_loss_is_told_once_and_where_it_is(dialect: Dialect, conversation: tuple[Message, ...], what: str) -> None:
    told = losses(conversation, dialect)
    assert [loss.what for loss in told] == [what]
    assert from_dialect(to_dialect(conversation, dialect), dialect) != conversation


def test_a_text_that_reads_like_a_mark_is_told() -> None:
    (loss,) = losses(FORGED, "openai-chat")
    assert loss.what == "a text that reads like a mark of Clew's own"
    assert from_dialect(to_dialect(FORGED, "openai-chat"), "openai-chat") != FORGED


@each_dialect
def test_what_one_vendor_said_is_not_sent_to_another(dialect: Dialect) -> None:
    for other in DIALECTS:
        if other != dialect:
            beside = user(Text("a", {other: {"x": 1}}))
            opaque = user("a", Opaque(other, {"type": "novel", "x": 1}))
            assert to_dialect([beside], dialect) == to_dialect([opaque], dialect) == to_dialect([user("a")], dialect)
            assert [loss.block for loss in losses([beside], dialect)] == [0]
            assert [loss.block for loss in losses([opaque], dialect)] == [1]


@each_dialect
def test_an_unknown_part_goes_back_to_its_own_dialect_unchanged(dialect: Dialect) -> None:
    part = {"type": "novel", "x": {"y": [None, 1]}}
    message = {"role": "user", "content": [part]}
    payloads: dict[str, Any] = {
        "anthropic": {"messages": [message]},
        "openai-chat": [message],
        "openai-responses": [{"type": "message", **message}],
        "gemini": {"contents": [{"role": "user", "parts": [part]}]},
    }
    conversation = from_dialect(payloads[dialect], dialect)
    assert isinstance(conversation[0].content[0], Opaque)
    assert losses(conversation, dialect) == []
    assert to_dialect(conversation, dialect) == payloads[dialect]


@each_dialect
def test_a_payload_shares_nothing_with_the_conversation(dialect: Dialect) -> None:
    arguments = {"a": {"b": 1}}
    conversation = (user("a"), assistant(ToolCall("t", "f", arguments)), tool(ToolResult("t")))
    before = to_dialect(conversation, dialect)
    _spoil(to_dialect(conversation, dialect))
    assert to_dialect(conversation, dialect) == before


def _spoil(value: Any) -> None:
    for inner in list(value.values() if isinstance(value, dict) else value):
        if isinstance(inner, (dict, list)):
            _spoil(inner)
    value.clear()


@each_dialect
def test_values_that_are_not_json_are_sent_as_the_nearest_that_is(dialect: Dialect) -> None:
    odd = {"nan": float("nan"), "bytes": b"x", "big": 10**400, "tuple": (1,), 5: "five"}
    conversation = (user("a"), assistant(ToolCall("t", "f", odd)), tool(ToolResult("t")))
    assert [loss.what for loss in losses(conversation, dialect)] == ["arguments that are not JSON"]
    again = from_dialect(to_dialect(conversation, dialect), dialect)
    assert again[1].content[0] == ToolCall(
        "t", "f", {"nan": None, "bytes": "eA==", "big": None, "tuple": [1], "5": "five"}
    )


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(InvalidInput, match="nested too deeply"):
        to_dialect((user("a"), assistant(ToolCall("t", "f", {"x": deep}))), "anthropic")


def test_a_lone_surrogate_is_no_obstacle() -> None:
    conversation = (user("\ud800"), assistant(ToolCall("\ud800", "\ud800", {"a": "\ud800"})))
    for dialect in DIALECTS:
        name = cast(Dialect, dialect)
        payload = to_dialect(conversation, name)
        assert to_dialect(from_dialect(payload, name), name) == payload


@pytest.mark.parametrize("call", [to_dialect, from_dialect, losses])
def test_an_unknown_dialect_is_refused_with_those_that_are_known(call: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"'latin' is not a dialect\. Give one of anthropic, openai-chat, openai-resp"
    ):
        call([], "latin")
