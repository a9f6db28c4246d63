"""OpenAI's Responses API as the model server speaks it: functions that read requests, and that write responses, streams
and errors."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from clew.log import Usage
from clew.messages import Block, Opaque, System, Text, Thinking, ToolCall, plain_text
from clew.messages.dialects import from_dialect
from clew.messages.dialects.shared import arguments_text, own
from clew.models.base import ModelRequest, ToolSpec
from clew.testing.model_server.openai_chat import openai_error, read_choice
from clew.testing.model_server.wire import Answer, Body, Event, Problem, Wire, stopped_early
from clew.testing.replies import fragments, pieces

__all__ = ["RESPONSES"]

_NAME = "openai-responses"
_OWN = frozenset({"input", "instructions", "tools", "tool_choice", "max_output_tokens", "stream"})
_SEALED = "reasoning.encrypted_content"
Item = dict[str, Any]


def _request(body: Body) -> ModelRequest:
    messages = from_dialect(_said(body), "openai-responses")
    system = body.get("instructions") or ""
    if not system and messages and isinstance(messages[0], System):
        system, messages = plain_text(messages[0]), messages[1:]
    return ModelRequest(
        messages=messages,
        system=system,
        tools=tuple(
            ToolSpec(
                str(tool.get("name") or tool.get("type")), tool.get("description") or "", tool.get("parameters") or {}
            )
            for tool in _tools(body)
        ),
        tool_choice=read_choice(body.get("tool_choice")),
        max_tokens=body.get("max_output_tokens"),
        options={key: value for key, value in body.items() if key not in _OWN},
    )


def _said(body: Body) -> Any:
    """Return the conversation in a request to OpenAI's Responses API: the request's `input`, without the items that are
    no part of the conversation and only offer tools."""
    given = body.get("input") or []
    return [item for item in given if not _offers_tools(item)] if isinstance(given, list) else given


def _offers_tools(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "additional_tools"


def _tools(body: Body) -> list[dict[str, Any]]:
    """Return all tools that a request offers, in its field `tools` and in items of its `input`. A group of tools is
    replaced by the tools in it."""
    given = body.get("input")
    found = list(body.get("tools") or ())
    for item in given if isinstance(given, list) else ():
        found += (item.get("tools") or ()) if _offers_tools(item) else ()
    return [tool for offered in found for tool in (offered.get("tools") or [offered])]


def _items(answer: Answer, body: Body) -> list[Item]:
    custom = {tool.get("name") for tool in _tools(body) if tool.get("type") == "custom"}
    sealed = _SEALED in (body.get("include") or ())
    items = []
    for index, block in enumerate(answer.content):
        item = _item(block, f"{answer.number + 1}_{index + 1}", custom, sealed)
        if item is not None:
            items.append(item)
    return items


def _item(block: Block, place: str, custom: set[Any], sealed: bool) -> Item | None:
    """Convert a block of a response to an output item of OpenAI's Responses API, or return None if that API has no item
    for it.

    The item's id contains the text `place`, which the caller makes from the numbers of the response and of the block,
    so that the id is the same when a run is resumed. `custom` are the names of the tools that take a text instead of
    JSON arguments. `sealed` says whether thinking is sent encrypted.
    """
    if isinstance(block, Text):
        text = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
        return {"id": f"msg_{place}", **item}
    if isinstance(block, Thinking):
        summary = [{"type": "summary_text", "text": block.text}] if block.text else []
        item = {"id": own(block.extra, _NAME).get("id") or f"rs_{place}", "type": "reasoning", "summary": summary}
        encrypted = block.encrypted or base64.b64encode(block.text.encode()).decode()
        return {**item, "encrypted_content": encrypted} if sealed or block.encrypted else item
    if isinstance(block, ToolCall):
        call = {"call_id": block.id, "name": block.name, "status": "completed"}
        if block.name in custom or own(block.extra, _NAME).get("type") == "custom_tool_call":
            return {"id": f"ctc_{place}", "type": "custom_tool_call", **call, "input": _input(block)}
        return {"id": f"fc_{place}", "type": "function_call", **call, "arguments": arguments_text(block.arguments)}
    if isinstance(block, Opaque) and block.dialect == _NAME:
        return dict(block.value)
    return None


def _input(call: ToolCall) -> str:
    """Return the text to send as the input of a custom tool, which is a tool that takes a text instead of JSON
    arguments. If the call's arguments are a text, as in `call("apply_patch", "…")`, return that text. If the only
    argument is `input`, return its value. Otherwise return the arguments as JSON."""
    given = call.arguments
    if isinstance(given, dict) and given.keys() == {"input"}:
        given = given["input"]
    return given if isinstance(given, str) else arguments_text(given)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _begun(answer: Answer, body: Body) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": answer.model,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": body.get("store", True),
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": body.get("truncation") or "disabled",
        "usage": None,
        "user": None,
    }


def _whole(answer: Answer, body: Body) -> dict[str, Any]:
    early = stopped_early(answer.stop)
    reason = {"length": "max_output_tokens", "refusal": "content_filter", None: None}[early]
    items = _items(answer, body)
    if early and items and items[-1].get("status") == "completed":
        items[-1] = {**items[-1], "status": "incomplete"}
    return {
        **_begun(answer, body),
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": items,
        "usage": _usage(answer.usage),
    }


def _events(answer: Answer, body: Body) -> list[Event]:
    return [
        Event(data["type"], {**data, "sequence_number": number}) for number, data in enumerate(_stream(answer, body))
    ]


def _stream(answer: Answer, body: Body) -> Iterator[Item]:
    begun, whole = _begun(answer, body), _whole(answer, body)
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        start, events = _opened(item)
        yield {"type": "response.output_item.added", "output_index": index, "item": start}
        for event in events:
            yield {**event, "output_index": index, "item_id": item.get("id")}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _opened(item: Item) -> tuple[Item, list[Item]]:
    """Return the two parts in which an output item of a response is streamed: the item as it is sent at its beginning,
    still empty, and the list of events that fill it. Fields that the events of all items have are not included."""
    if item["type"] == "message":
        return {**item, "status": "in_progress", "content": []}, [
            event for index, part in enumerate(item["content"]) for event in _text_events(part, index)
        ]
    if item["type"] == "reasoning":
        return {**item, "summary": []}, [
            event for index, part in enumerate(item["summary"]) for event in _summary_events(part, index)
        ]
    if item["type"] == "function_call":
        kind = "response.function_call_arguments"
        events: list[Item] = [{"type": f"{kind}.delta", "delta": piece} for piece in fragments(item["arguments"])]
        events.append({"type": f"{kind}.done", "arguments": item["arguments"]})
        return {**item, "status": "in_progress", "arguments": ""}, events
    if item["type"] == "custom_tool_call":
        kind = "response.custom_tool_call_input"
        events = [{"type": f"{kind}.delta", "delta": piece} for piece in fragments(item["input"])]
        return {**item, "status": "in_progress", "input": ""}, [
            *events,
            {"type": f"{kind}.done", "input": item["input"]},
        ]
    return item, []


def _text_events(part: Item, index: int) -> Iterator[Item]:
    if part["type"] != "output_text":
        return
    at = {"content_index": index}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}


def _summary_events(part: Item, index: int) -> Iterator[Item]:
    at = {"summary_index": index}
    yield {"type": "response.reasoning_summary_part.added", **at, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": "response.reasoning_summary_text.delta", **at, "delta": piece}
    yield {"type": "response.reasoning_summary_text.done", **at, "text": part["text"]}
    yield {"type": "response.reasoning_summary_part.done", **at, "part": part}


def _error(problem: Problem) -> dict[str, Any]:
    message = "Your input exceeds the context window of this model. Please adjust your input and try again."
    return openai_error(problem, (message, "input"))


def _stream_error(problem: Problem, answer: Answer, body: Body, sent: int) -> Event:
    """Return the event that ends a stream with the error `problem`, in OpenAI's Responses API. The event holds the
    response `answer` with the status `failed` and the error. `body` is the body of the request. `sent` is how many
    events were sent before on this stream; it is also the event's sequence number."""
    error = _error(problem)["error"]
    code = error["code"] if problem.overflow or problem.status == 429 else "server_error"
    failed = {**_begun(answer, body), "status": "failed", "error": {"code": code, "message": error["message"]}}
    kind = "response.failed"
    return Event(kind, {"type": kind, "response": failed, "sequence_number": sent})


def _is_delta(event: Event) -> bool:
    return (event.name or "").endswith(".delta")


RESPONSES = Wire("openai-responses", "call", ("input",), _request, _whole, _events, _error, _stream_error, _is_delta)
