"""What is particular to chat completions, and to the many servers that speak them after their own fashion."""

from __future__ import annotations

from typing import Any

import pytest

from clew.errors import ModelUnavailable
from clew.log import Usage
from clew.messages import Opaque, Text, plain_text, tool_calls
from clew.models import ModelResponse, ThinkingDelta, cost_of
from tests.models.asking import Wire, ask, events_of, response_of, sse, thoughts

pytestmark = pytest.mark.anyio

DONE = "[DONE]"


def chunk(delta: dict[str, Any] | None = None, stop: str | None = None, **fields: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": stop}]
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-2025-08-07"}
    return {**base, "choices": choices, **fields}


def call_piece(**fields: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [fields]})


async def said(*events: dict[str, Any] | str, model: str = "openai:gpt-5") -> ModelResponse:
    return await response_of(Wire(sse(*events)).model(model), ask())


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("http://127.0.0.1:8000/v1", "max_tokens"),
        ("https://openai.com.example.org/v1", "max_tokens"),
    ],
)
async def test_the_limit_has_the_name_that_the_server_knows(url: str, name: str) -> None:
    wire = Wire(sse(chunk({"content": "Hi"}, "stop"), DONE))
    await response_of(wire.model("openai:gpt-5", base_url=url), ask(max_tokens=9))
    assert wire.bodies[0][name] == 9
    assert len({"max_tokens", "max_completion_tokens"} & wire.bodies[0].keys()) == 1


async def test_a_schema_that_cannot_be_enforced_is_sent_as_a_wish() -> None:
    wire = Wire(sse(chunk({"content": "{}"}, "stop"), DONE))
    open_schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    await response_of(wire.model("openai:gpt-5"), ask(output_schema=open_schema))
    assert wire.bodies[0]["response_format"]["json_schema"] == {
        "name": "output",
        "schema": open_schema,
        "strict": False,
    }


async def test_a_key_for_the_cache_is_passed_on() -> None:
    wire = Wire(sse(chunk({"content": "Hi"}, "stop"), DONE))
    await response_of(wire.model("openai:gpt-5"), ask(options={"prompt_cache_key": "thread-1"}))
    assert wire.bodies[0]["prompt_cache_key"] == "thread-1"
    assert wire.bodies[0]["stream_options"] == {"include_usage": True}


async def test_calls_are_put_together_by_their_numbers() -> None:
    response = await said(
        call_piece(index=0, id="a", type="function", function={"name": "one", "arguments": ""}),
        call_piece(index=1, id="b", type="function", function={"name": "two", "arguments": ""}),
        call_piece(index=0, function={"arguments": '{"x":'}),
        call_piece(index=1, function={"arguments": '{"y": 2}'}),
        call_piece(index=0, function={"arguments": " 1}"}),
        chunk({}, "tool_calls"),
        DONE,
    )
    assert [(made.id, made.name, made.arguments) for made in tool_calls(response.message)] == [
        ("a", "one", {"x": 1}),
        ("b", "two", {"y": 2}),
    ]


async def test_calls_without_numbers_or_with_the_same_are_told_apart_by_their_ids() -> None:
    for index in ({}, {"index": 0}):
        response = await said(
            call_piece(**index, id="a", type="function", function={"name": "one", "arguments": "{}"}),
            call_piece(**index, id="b", type="function", function={"name": "two", "arguments": '{"y"'}),
            call_piece(**index, id="b", function={"name": "two", "arguments": ": 2}"}),
            chunk({}, "tool_calls"),
            DONE,
        )
        assert [(made.id, made.name, made.arguments) for made in tool_calls(response.message)] == [
            ("a", "one", {}),
            ("b", "two", {"y": 2}),
        ]


async def test_a_call_without_an_id_gets_one() -> None:
    response = await said(
        call_piece(index=0, type="function", function={"name": "one", "arguments": "{}"}), chunk({}, "tool_calls"), DONE
    )
    assert tool_calls(response.message)[0].id


async def test_arguments_that_are_no_json_are_kept_as_the_model_wrote_them() -> None:
    response = await said(
        call_piece(index=0, id="a", type="function", function={"name": "one", "arguments": '{"x":'}),
        chunk({}, "length"),
        DONE,
    )
    assert tool_calls(response.message)[0].arguments == '{"x":'


async def test_thinking_of_other_vendors_is_told_and_kept() -> None:
    wire = Wire(
        sse(
            chunk({"role": "assistant", "reasoning_content": "Hm"}),
            chunk({"reasoning_content": "m."}),
            chunk({"content": "Hi"}),
            chunk({}, "stop"),
            DONE,
        )
    )
    events = await events_of(wire.model("openai:some-reasoner"), ask())
    assert thoughts(events) == "Hmm."
    assert isinstance(events[0], ThinkingDelta)
    last = events[-1]
    assert isinstance(last, ModelResponse)
    kept, words = last.message.content
    assert kept == Opaque("openai-chat", {"message": {"reasoning_content": "Hmm."}})
    assert words == Text("Hi")


async def test_lists_in_pieces_are_put_together_by_their_numbers() -> None:
    response = await said(
        chunk({"reasoning_details": [{"type": "reasoning.text", "text": "Hm", "index": 0}]}),
        chunk({"reasoning_details": [{"type": "reasoning.text", "text": "m.", "index": 0}]}),
        chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "sealed", "index": 1}]}),
        chunk({"content": "Hi"}, "stop"),
        DONE,
    )
    kept = response.message.content[0]
    assert isinstance(kept, Opaque)
    assert kept.value["message"]["reasoning_details"] == [
        {"type": "reasoning.text", "text": "Hmm.", "index": 0},
        {"type": "reasoning.encrypted", "data": "sealed", "index": 1},
    ]


async def test_a_refusal_is_kept() -> None:
    response = await said(chunk({"refusal": "I will"}), chunk({"refusal": " not."}), chunk({}, "stop"), DONE)
    assert response.message.content == (Opaque("openai-chat", {"type": "refusal", "refusal": "I will not."}),)


async def test_usage_comes_after_the_end_and_belongs_to_the_response() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 12},
    }
    response = await said(chunk({"content": "Hi"}), chunk({}, "stop"), chunk(usage=usage), DONE)
    assert response.usage == Usage(100, 20, 60, 0, 12)
    assert response.model == "gpt-5-2025-08-07"
    assert cost_of([response.model], response.usage) == pytest.approx((40 * 1.25 + 60 * 0.125 + 20 * 10) / 1e6)


async def test_a_server_that_does_not_count_leaves_the_cost_unknown() -> None:
    response = await said(chunk({"content": "Hi"}), chunk({}, "stop"), DONE)
    assert plain_text(response.message) == "Hi"
    assert cost_of(["gpt-5"], response.usage) is None


async def test_a_stream_without_a_reason_to_stop_is_not_a_response() -> None:
    wire = Wire(sse(chunk({"content": "Hi"}), DONE))
    with pytest.raises(ModelUnavailable, match="ended before the response did"):
        await events_of(wire.model("openai:gpt-5", max_retries=1), ask())
    assert len(wire.bodies) == 2
