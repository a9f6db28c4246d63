"""OpenAI's Chat Completions API as the model server speaks it: functions that read requests, and that write responses,
streams and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clew.log import Usage
from clew.messages import Opaque, System, Text, plain_text
from clew.messages.dialects import from_dialect
from clew.messages.dialects.shared import arguments_text
from clew.models.base import ModelRequest, ToolSpec
from clew.testing.model_server.wire import Answer, Body, Event, Problem, Wire, calls_in, stopped_early
from clew.testing.replies import fragments, pieces

__all__ = ["CHAT", "openai_error", "read_choice"]

_OWN = frozenset({"messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stream"})


def _request(body: Body) -> ModelRequest:
    messages = from_dialect(body, "openai-chat")
    system = ""
    if messages and isinstance(messages[0], System):
        system, messages = plain_text(messages[0]), messages[1:]
    tools = [tool.get("function") or tool.get("custom") or {} for tool in body.get("tools") or ()]
    return ModelRequest(
        messages=messages,
        system=system,
        tools=tuple(
            ToolSpec(str(tool.get("name", "")), tool.get("description") or "", tool.get("parameters") or {})
            for tool in tools
        ),
        tool_choice=read_choice(body.get("tool_choice")),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        options={key: value for key, value in body.items() if key not in _OWN},
    )


def read_choice(choice: Any) -> Any:
    """Return whether the model may (`auto`), must (`required`) or must not (`none`) call tools. `choice` is the field
    `tool_choice` of a request to OpenAI's API. If it names one tool, the result is `required`."""
    return choice if choice in ("required", "none") else "required" if isinstance(choice, dict) else "auto"


def _finish(answer: Answer) -> str:
    early = {"length": "length", "refusal": "content_filter", None: ""}[stopped_early(answer.stop)]
    return early or ("tool_calls" if calls_in(answer) else "stop")


def _text(answer: Answer) -> str:
    return "".join(block.text for block in answer.content if isinstance(block, Text))


def _refusal(answer: Answer) -> str | None:
    """Return the text with which the model refuses to answer, or None if it does not refuse. It refuses if the scripted
    response contains a refusal in the form of OpenAI's Chat Completions API."""
    refusals = [block.value for block in answer.content if isinstance(block, Opaque) and block.dialect == "openai-chat"]
    return next((value["refusal"] for value in refusals if value.get("type") == "refusal"), None)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _whole(answer: Answer, body: Body) -> dict[str, Any]:
    """Return the response as OpenAI's Chat Completions API sends it if the request does not ask for a stream. Thinking
    is left out, because this API does not show it. `body`, the body of the request, is not used here."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": _text(answer) or None,
        "refusal": _refusal(answer),
        "annotations": [],
    }
    if calls_in(answer):
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call.arguments)},
            }
            for call in calls_in(answer)
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
    return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer.usage)}


def _events(answer: Answer, body: Body) -> list[Event]:
    head = _head(answer, "chat.completion.chunk")
    counted = bool((body.get("stream_options") or {}).get("include_usage"))
    unknown = {"usage": None} if counted else {}
    chunks = [
        {
            **head,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
            **unknown,
        }
        for delta, finish in _deltas(answer)
    ]
    if counted:
        chunks.append({**head, "choices": [], "usage": _usage(answer.usage)})
    return [*(Event(None, chunk) for chunk in chunks), Event(None, "[DONE]")]


def _deltas(answer: Answer) -> Iterator[tuple[dict[str, Any], str | None]]:
    text, refusal = _text(answer), _refusal(answer)
    yield {"role": "assistant", "content": "" if text else None, "refusal": None}, None
    for piece in pieces(text):
        yield {"content": piece}, None
    for piece in pieces(refusal or ""):
        yield {"refusal": piece}, None
    for index, call in enumerate(calls_in(answer)):
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}, None
        for piece in fragments(arguments_text(call.arguments)):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, None
    yield {}, _finish(answer)


def openai_error(problem: Problem, overflow: tuple[str, str]) -> dict[str, Any]:
    """Return the body of the HTTP response for the error `problem`, in the form that both OpenAI APIs have. `overflow`
    is used only if the error is that the request was too long for the model. It is a pair: the error message, and the
    name of the request's field that the error blames."""
    kind, code, message, param = "invalid_request_error", None, problem.message, None
    if problem.overflow:
        message, param, code = message or overflow[0], overflow[1], "context_length_exceeded"
    elif problem.status == 401:
        code = "invalid_api_key"
    elif problem.status == 429:
        kind, code, message = "requests", "rate_limit_exceeded", message or "Rate limit reached."
    elif problem.status >= 500:
        kind, message = "server_error", message or "The server had an error while processing your request."
    return {"error": {"message": message or "Bad request.", "type": kind, "param": param, "code": code}}


def _error(problem: Problem) -> dict[str, Any]:
    size, window = problem.size or 130_000, problem.window or 128_000
    message = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {size} tokens. "
        "Please reduce the length of the messages."
    )
    return openai_error(problem, (message, "messages"))


def _stream_error(problem: Problem, answer: Answer, body: Body, sent: int) -> Event:
    return Event(None, _error(problem))


def _is_delta(event: Event) -> bool:
    choices = event.data["choices"] if isinstance(event.data, dict) else ()
    return any(choice["delta"] and choice["finish_reason"] is None for choice in choices)


CHAT = Wire("openai-chat", "call", ("messages",), _request, _whole, _events, _error, _stream_error, _is_delta)
