"""What the vendors take: their SDKs' own types, and the rules that no type says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from anthropic.types import ContentBlockParam, MessageParam, TextBlockParam
from google.genai import types
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

_SYSTEM = TypeAdapter[Any](list[TextBlockParam])
_MESSAGES = TypeAdapter[Any](list[MessageParam])
_BLOCKS = TypeAdapter[Any](list[ContentBlockParam])
_CHAT = TypeAdapter[Any](list[ChatCompletionMessageParam])
_ITEMS = TypeAdapter[Any](list[ResponseInputItemParam])


def check(payload: Any, dialect: str) -> None:
    """Fails if the vendor would refuse the payload."""
    checks = {
        "anthropic": _check_anthropic,
        "openai-chat": _check_chat,
        "openai-responses": _check_responses,
        "gemini": _check_gemini,
    }
    checks[dialect](payload)


def _force(value: Any) -> None:
    """Pydantic validates iterables when they are walked: walk them."""
    if isinstance(value, dict):
        for inner in value.values():
            _force(inner)
    elif isinstance(value, (list, tuple)) or hasattr(value, "__next__"):
        for inner in value:
            _force(inner)


def _check_anthropic(payload: Any) -> None:
    assert payload.keys() <= {"system", "messages"}
    system, messages = payload.get("system", []), payload["messages"]
    _force(_SYSTEM.validate_python(system))
    _force(_MESSAGES.validate_python(messages))
    assert "system" not in payload or system
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + (
        ["user"] if len(messages) % 2 else []
    )
    seen: set[str] = set()
    asked: list[str] = []
    for message in messages:
        content = message["content"]
        assert content
        _force(_BLOCKS.validate_python(content))
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        assert results == asked
        assert [block["type"] for block in content[: len(results)]] == ["tool_result"] * len(results)
        asked = [block["id"] for block in content if block["type"] == "tool_use"]
        assert not asked or message["role"] == "assistant"
        assert len(set(asked)) == len(asked)
        assert not seen & set(asked)
        seen |= set(asked)
        _check_blocks(message["role"], content)
    assert not asked
    if messages and messages[-1]["role"] == "assistant" and messages[-1]["content"][-1]["type"] == "text":
        assert messages[-1]["content"][-1]["text"] == messages[-1]["content"][-1]["text"].rstrip()
    for block in [*system, *_all_parts(messages)]:
        assert block["type"] != "text" or block["text"].strip()


def _check_blocks(role: str, content: list[Any]) -> None:
    kinds = {block["type"] for block in content}
    if role == "assistant":
        assert not kinds & {"image", "document", "tool_result", "search_result", "container_upload"}
        assert content[-1]["type"] not in ("thinking", "redacted_thinking")
    else:
        assert not kinds & {"thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result"}
    for block in content:
        if block["type"] == "tool_use":
            assert re.fullmatch("[a-zA-Z0-9_-]+", block["id"])
            assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", block["name"])
        if block["type"] == "tool_result" and block.get("is_error"):
            assert {inner["type"] for inner in block["content"]} == {"text"}


def _all_parts(messages: list[Any]) -> Iterator[Any]:
    for message in messages:
        for block in message["content"]:
            yield block
            if block["type"] == "tool_result":
                yield from block.get("content", [])


def _check_chat(payload: Any) -> None:
    _force(_CHAT.validate_python(payload))
    waiting: list[str] = []
    for message in payload:
        if waiting:
            assert message["role"] == "tool"
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert message["role"] != "tool"
        waiting = [call["id"] for call in message.get("tool_calls", [])]
        assert "tool_calls" not in message or waiting
        assert len(set(waiting)) == len(waiting)
        assert all(0 < len(one) <= 40 for one in waiting)
        for call in message.get("tool_calls", []):
            assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", call[call["type"]]["name"])
        if message["role"] == "assistant":
            assert message.keys() & {"content", "tool_calls", "audio", "function_call"}
        assert message.get("content", "x") not in ("", [], None)
    assert not waiting


def _check_responses(payload: Any) -> None:
    _force(_ITEMS.validate_python(payload))
    calls: dict[str, str] = {}
    answered: set[str] = set()
    ids = [item["id"] for item in payload if "id" in item]
    assert len(set(ids)) == len(ids)
    for index, item in enumerate(payload):
        kind = item["type"]
        if kind in ("function_call", "custom_tool_call"):
            assert item["call_id"] not in calls
            assert 0 < len(item["call_id"]) <= 64
            assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", item["name"])
            calls[item["call_id"]] = kind
        elif kind in ("function_call_output", "custom_tool_call_output"):
            assert calls[item["call_id"]] + "_output" == kind
            assert item["call_id"] not in answered
            answered.add(item["call_id"])
        elif kind == "message":
            assert item["content"]
        elif kind == "reasoning":
            following = payload[index + 1]
            assert following["type"] not in ("function_call_output", "custom_tool_call_output")
            assert following.get("role", "assistant") == "assistant"
    assert answered == calls.keys()


def _check_gemini(payload: Any) -> None:
    assert payload.keys() <= {"systemInstruction", "contents"}
    if "systemInstruction" in payload:
        types.Content.model_validate_json(json.dumps(payload["systemInstruction"]))
        assert payload["systemInstruction"]["parts"]
        assert all(part["text"] for part in payload["systemInstruction"]["parts"])
    contents = payload["contents"]
    assert [content["role"] for content in contents] == ["user", "model"] * (len(contents) // 2) + (
        ["user"] if len(contents) % 2 else []
    )
    seen: set[str] = set()
    asked: list[tuple[str, str]] = []
    for content in contents:
        types.Content.model_validate_json(json.dumps(content))
        parts = content["parts"]
        assert parts
        answered = [part["functionResponse"] for part in parts if "functionResponse" in part]
        assert [(one["id"], one["name"]) for one in answered] == asked
        assert all("functionResponse" in part for part in parts[: len(answered)])
        assert all(one["response"].keys() in ({"output"}, {"error"}) for one in answered)
        asked = [(part["functionCall"]["id"], part["functionCall"]["name"]) for part in parts if "functionCall" in part]
        ids = [one for one, _ in asked]
        assert content["role"] == "model" or not (asked or any("executableCode" in part for part in parts))
        assert not seen & set(ids)
        assert len(set(ids)) == len(ids)
        seen |= set(ids)
        for call_id, name in asked:
            assert 0 < len(call_id) <= 64
            assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_-]{0,63}", name)
        for part in parts:
            assert part.get("text", "x") or "thoughtSignature" in part
            assert content["role"] == "model" or not part.get("thought")
    assert not asked
