"""What is particular to Anthropic's messages API."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic import AsyncAnthropic

from clew.errors import InvalidInput
from clew.messages import Opaque, Text, Thinking, ToolCall, assistant, plain_text, tool_calls, user
from clew.models import ToolSpec
from clew.models.anthropic import AnthropicModel
from clew.testing import ModelServer
from tests.models.asking import KEY, Wire, ask, last_body, model_at, resolved, response_of, sse

pytestmark = pytest.mark.anyio

CACHE = {"type": "ephemeral"}
START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1},
    },
}
STOP = {"type": "message_stop"}


def end(reason: str = "end_turn") -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


async def body_of(request: Any, name: str = "scripted", **settings: Any) -> dict[str, Any]:
    async with ModelServer(lambda _: "ok", strict=False) as server:
        model = model_at(server, "anthropic", name, **settings)
        await response_of(model, request)
        await model.aclose()
    return last_body(server)


async def test_the_cache_is_told_where_the_conversation_stays_the_same() -> None:
    request = ask(
        user("One"), assistant("Two"), user("Three", "Four"), system="S", tools=(ToolSpec("a"), ToolSpec("b"))
    )
    body = await body_of(request)
    assert body["system"] == [{"type": "text", "text": "S", "cache_control": CACHE}]
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, CACHE]
    marks = [part.get("cache_control") for message in body["messages"] for part in message["content"]]
    assert marks == [None, None, None, CACHE]


async def test_the_mark_is_on_the_last_words_of_the_user_even_if_the_model_spoke_since() -> None:
    body = await body_of(ask(user("One"), assistant("Two")))
    marks = [part.get("cache_control") for message in body["messages"] for part in message["content"]]
    assert marks == [CACHE, None]


async def test_marks_of_the_user_are_left_alone() -> None:
    marked = Text("One", {"anthropic": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}})
    body = await body_of(ask(user(marked, "Two"), system="S", tools=(ToolSpec("a"),)))
    assert "cache_control" not in body["system"][0]
    assert "cache_control" not in body["tools"][0]
    assert "cache_control" not in body["messages"][0]["content"][1]


async def test_hints_can_be_turned_off() -> None:
    body = await body_of(ask(system="S"), cache=False)
    assert body["system"] == [{"type": "text", "text": "S"}]


@pytest.mark.parametrize(
    ("name", "options", "limit"),
    [
        ("claude-opus-4-7", {}, 32_000),
        ("claude-3-5-haiku-20241022", {}, 8_192),
        ("of-nobody", {}, 8_192),
        ("claude-opus-4-5", {"thinking": {"type": "enabled", "budget_tokens": 40_000}}, 48_192),
        ("claude-opus-4-7", {"max_tokens": 5}, 5),
    ],
)
@pytest.mark.filterwarnings("ignore:The model")
@pytest.mark.filterwarnings("ignore:Using Claude with")
async def test_the_limit_that_the_api_asks_for_leaves_room(name: str, options: dict[str, Any], limit: int) -> None:
    assert (await body_of(ask(options=options), name))["max_tokens"] == limit


async def test_a_schema_is_brought_into_the_form_the_api_enforces() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    body = await body_of(ask(output_schema=schema, options={"output_config": {"effort": "low"}}))
    config = body["output_config"]
    assert config["effort"] == "low"
    assert config["format"]["schema"]["additionalProperties"] is False
    assert "minimum" not in config["format"]["schema"]["properties"]["n"]


async def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="output schema"):
        await body_of(ask(output_schema={"properties": {}}))


async def test_the_vendors_own_tools_are_added_to_the_agents() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    body = await body_of(ask(tools=(ToolSpec("a"),), options={"tools": [search]}))
    assert [tool["name"] for tool in body["tools"]] == ["a", "web_search"]


async def test_nothing_of_a_stream_is_lost() -> None:
    cited = {
        "type": "char_location",
        "cited_text": "x",
        "document_index": 0,
        "start_char_index": 0,
        "end_char_index": 1,
    }
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    stream = [
        START,
        *block(0, {"type": "redacted_thinking", "data": "sealed"}),
        *block(
            1,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Hm"},
            {"type": "thinking_delta", "thinking": "m"},
            {"type": "signature_delta", "signature": "signed"},
        ),
        *block(2, search, {"type": "input_json_delta", "partial_json": '{"query": "x"}'}),
        *block(
            3,
            {"type": "text", "text": "", "citations": None},
            {"type": "text_delta", "text": "Hi"},
            {"type": "citations_delta", "citation": cited},
        ),
        end(),
        STOP,
    ]
    wire = Wire(sse(*stream))
    response = await response_of(wire.model("anthropic:claude-opus-5-5"), ask())
    sealed, thought, searched, said = response.message.content
    assert sealed == Thinking(encrypted="sealed")
    assert thought == Thinking("Hmm", "signed")
    assert searched == Opaque("anthropic", {**search, "input": {"query": "x"}})
    assert said == Text("Hi", {"anthropic": {"citations": [cited]}})
    assert (response.usage.input_tokens, response.usage.cache_read_tokens, response.usage.output_tokens) == (15, 5, 7)


@pytest.mark.parametrize("written", ['{"a": 1', "[1, 2]", "so much for JSON"])
async def test_arguments_that_are_no_object_are_kept_as_the_model_wrote_them(written: str) -> None:
    called = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
    half = len(written) // 2
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in (written[:half], written[half:])]
    wire = Wire(sse(START, *block(0, called, *deltas), end("max_tokens"), STOP))
    response = await response_of(wire.model("anthropic:claude-opus-5-5"), ask())
    assert tool_calls(response.message) == (ToolCall("toolu_1", "add", written),)
    assert response.message.stop == "max_tokens"


async def test_a_client_of_the_users_own_is_used_and_left_open() -> None:
    async with ModelServer(["Hi."]) as server, AsyncAnthropic(base_url=server.anthropic_url, api_key=KEY) as client:
        model = AnthropicModel("scripted", client=client)
        assert plain_text((await response_of(model, ask())).message) == "Hi."
        await model.aclose()
        assert not client.is_closed()


def test_a_client_of_the_users_own_takes_no_settings() -> None:
    with pytest.raises(InvalidInput, match="base_url"):
        AnthropicModel("scripted", client=AsyncAnthropic(api_key=KEY), base_url="http://127.0.0.1:9")


def test_the_window_is_known_or_said_or_none() -> None:
    assert resolved("anthropic:claude-opus-4-5-20251101").context_window == 200_000
    assert resolved("anthropic:claude-opus-4-5", context_window=1_000_000).context_window == 1_000_000
    assert resolved("anthropic:of-nobody").context_window is None
