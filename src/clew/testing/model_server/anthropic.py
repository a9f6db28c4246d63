"""Anthropic's Messages API as the model server speaks it: functions that read requests, and that write responses,
streams and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clew.log import Usage
from clew.messages import Block, Opaque, System, Text, Thinking, ToolCall, plain_text
from clew.messages.dialects import from_dialect
from clew.messages.dialects.shared import dumps, plain
from clew.models.base import ModelRequest, ToolSpec
from clew.testing.model_server.refusals import signature_of
from clew.testing.model_server.wire import Answer, Body, Event, Problem, Wire, calls_in, stopped_early
from clew.testing.replies import fragments, pieces

__all__ = ["ANTHROPIC"]

_STOPS = {
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_CHOICES = {"any": "required", "tool": "required", "none": "none"}


def _request(body: Body) -> ModelRequest:
    messages = from_dialect(body, "anthropic")
    system = ""
    if messages and isinstance(messages[0], System) and body.get("system"):
        system, messages = plain_text(messages[0]), messages[1:]
    choice = body.get("tool_choice") or {}
    return ModelRequest(
        messages=messages,
        system=system,
        tools=tuple(
            ToolSpec(str(tool.get("name", "")), tool.get("description") or "", tool.get("input_schema") or {})
            for tool in body.get("tools") or ()
        ),
        tool_choice=_CHOICES.get(choice.get("type"), "auto"),  # type: ignore[arg-type]
        max_tokens=body.get("max_tokens"),
        options={key: value for key, value in body.items() if key not in _OWN},
    )


_OWN = frozenset({"messages", "system", "tools", "tool_choice", "max_tokens", "stream"})


def _block(block: Block) -> dict[str, Any] | None:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Thinking):
        if block.encrypted is not None and not block.text:
            return {"type": "redacted_thinking", "data": block.encrypted}
        return {"type": "thinking", "thinking": block.text, "signature": block.signature or signature_of(block.text)}
    if isinstance(block, ToolCall):
        arguments = plain(block.arguments)
        arguments = arguments if isinstance(arguments, dict) else {"arguments": arguments}
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}
    if isinstance(block, Opaque) and block.dialect == "anthropic":
        return dict(block.value)
    return None


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    return [written for block in answer.content if (written := _block(block)) is not None]


def _stop(answer: Answer) -> str:
    if answer.stop in _STOPS:
        return answer.stop
    early = {"length": "max_tokens", "refusal": "refusal", None: ""}[stopped_early(answer.stop)]
    return early or ("tool_use" if calls_in(answer) else "end_turn")


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the token counts in the form of Anthropic's API, which does not include tokens read from or written to the
    cache in the input tokens, but counts them apart."""
    return {
        "input_tokens": max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.cache_write_tokens, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }


def _whole(answer: Answer, body: Body) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": _blocks(answer),
        "stop_reason": _stop(answer),
        "stop_sequence": None,
        "usage": _usage(answer.usage),
    }


def _events(answer: Answer, body: Body) -> list[Event]:
    return [Event(data["type"], data) for data in _stream(answer, body)]


def _stream(answer: Answer, body: Body) -> Iterator[dict[str, Any]]:
    whole = _whole(answer, body)
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    del begun["usage"]["output_tokens_details"]
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(whole["content"]):
        start, deltas = _opened(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        if index == 0:
            yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    usage = {key: value for key, value in whole["usage"].items() if key not in ("cache_creation", "service_tier")}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
        "usage": usage,
    }
    yield {"type": "message_stop"}


def _opened(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the two parts in which a content block of a response is streamed: the block as it is sent at its
    beginning, still empty, and the list of changes that fill it."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if block["type"] == "tool_use":
        parts = ["", *fragments(dumps(block["input"]))] if block["input"] else [""]
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]
    return block, []


def _error(problem: Problem) -> dict[str, Any]:
    kind = _ERRORS.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    message = problem.message
    if problem.overflow:
        size, window = problem.size or 210_000, problem.window or 200_000
        kind = "invalid_request_error"
        message = message or f"prompt is too long: {size} tokens > {window} maximum"
    message = message or {"overloaded_error": "Overloaded", "api_error": "Internal server error"}.get(kind, kind)
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}


def _stream_error(problem: Problem, answer: Answer, body: Body, sent: int) -> Event:
    return Event("error", _error(problem))


def _is_delta(event: Event) -> bool:
    return event.name == "content_block_delta"


ANTHROPIC = Wire(
    "anthropic", "toolu", ("max_tokens", "messages"), _request, _whole, _events, _error, _stream_error, _is_delta
)
