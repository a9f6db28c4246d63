"""Every body and event is what the vendor's own types say, with nothing missing and nothing of another kind."""

from __future__ import annotations

import json
from typing import Any

import anthropic.types
import google.genai.types
import openai.types.chat
import openai.types.responses
import pytest
from pydantic import TypeAdapter

from clew.log import Usage
from clew.messages import Opaque, Thinking
from clew.messages.dialects import from_dialect
from clew.testing import ModelServer, call, reply, say, think
from tests.testing.raw import ask, events_of

SCRIPTS = [
    "Hello there.",
    "",
    think("Well.") + say("Let me see.") + call("add", a=1, b=[{"c": None}]) + call("now"),
    [Thinking("", None, "c2VhbGVk"), "Yes."],
    reply("Once upon a", stop="length"),
    reply("I", stop="refusal"),
    reply("Hi", usage=Usage(100, 20, 60, 30, 8), model="m-2026"),
    "Grüße, 世界 🎈\n\n  indented\ttext ",
    [Opaque("openai-chat", {"type": "refusal", "refusal": "I would rather not."}), "No."],
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"stream_options": {"include_usage": True}},
    {"include": ["reasoning.encrypted_content"], "store": False, "metadata": {"a": "b"}},
]
WHOLE: dict[str, Any] = {
    "anthropic": anthropic.types.Message,
    "openai-chat": openai.types.chat.ChatCompletion,
    "openai-responses": openai.types.responses.Response,
    "gemini": google.genai.types.GenerateContentResponse,
}
EVENTS: dict[str, Any] = {
    "anthropic": anthropic.types.RawMessageStreamEvent,
    "openai-chat": openai.types.chat.ChatCompletionChunk,
    "openai-responses": openai.types.responses.ResponseStreamEvent,
    "gemini": google.genai.types.GenerateContentResponse,
}


@pytest.mark.parametrize("dialect", WHOLE)
@pytest.mark.parametrize("response", SCRIPTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_bodies_and_events_are_of_the_vendors_types(dialect: Any, response: Any, options: dict[str, Any]) -> None:
    with ModelServer([response]) as server:
        status, headers, body = ask(server, dialect, **options)
        assert (status, headers["content-type"]) == (200, "application/json")
        TypeAdapter(WHOLE[dialect]).validate_json(body, strict=True)
        status, headers, stream = ask(server, dialect, stream=True, **options)
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        adapter: TypeAdapter[Any] = TypeAdapter(EVENTS[dialect])
        for name, data in events_of(stream):
            if data == "[DONE]" or name == "ping":
                continue
            assert name == (None if dialect in ("openai-chat", "gemini") else data["type"])
            adapter.validate_json(json.dumps(data), strict=True)


@pytest.mark.parametrize("dialect", WHOLE)
def test_our_own_dialects_read_the_bodies_back(dialect: Any) -> None:
    with ModelServer([say("Let me see.") + call("add", a=1)]) as server:
        (message,) = from_dialect(json.loads(ask(server, dialect)[2]), dialect)
    text, made = message.content
    assert getattr(text, "text", None) == "Let me see."
    assert (getattr(made, "name", None), getattr(made, "arguments", None)) == ("add", {"a": 1})


def test_anthropics_stream_says_what_goes_in_at_its_start_and_what_came_out_at_its_end() -> None:
    with ModelServer([reply("Hi", usage=Usage(100, 20, 60, 30))]) as server:
        events = events_of(ask(server, "anthropic", stream=True)[2])
    start, end = events[0][1]["message"]["usage"], events[-2][1]["usage"]
    assert (start["input_tokens"], start["cache_read_input_tokens"], start["cache_creation_input_tokens"]) == (
        10,
        60,
        30,
    )
    assert (start["output_tokens"], end["output_tokens"]) == (1, 20)
    assert [name for name, _ in events] == [
        *("message_start", "content_block_start", "ping", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]


def test_a_stream_of_chat_chunks_ends_as_the_vendors_does() -> None:
    with ModelServer(["Hi"]) as server:
        assert events_of(ask(server, "openai-chat", stream=True)[2])[-1] == (None, "[DONE]")
        assert events_of(ask(server, "openai-responses", stream=True)[2])[-1][0] == "response.completed"
