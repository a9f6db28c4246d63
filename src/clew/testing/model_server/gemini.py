"""Google's Gemini API as the model server speaks it: functions that read requests, and that write responses, streams
and errors.

The path of a Gemini request names the model, and says whether the response is to be streamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from clew.log import Usage
from clew.messages import Block, Image, Opaque, System, Text, Thinking, ToolCall, plain_text
from clew.messages.dialects import from_dialect
from clew.messages.dialects.gemini_parts import camel
from clew.messages.dialects.shared import encode_base64, own, plain
from clew.models.base import ModelRequest, ToolSpec
from clew.testing.model_server.refusals import signature_of
from clew.testing.model_server.wire import Answer, Body, Event, Problem, Wire, stopped_early
from clew.testing.replies import pieces

__all__ = ["GEMINI", "asked_by", "gemini_model"]

_NAME: Literal["gemini"] = "gemini"
_SIGNATURE = "thoughtSignature"
_CALL = re.compile(r"/(?:models|tunedModels)/([^/:]+):(generateContent|streamGenerateContent|countTokens)")
_OWN = frozenset({"contents", "systemInstruction", "tools", "toolConfig", "stream"})
_CHOICES = {"ANY": "required", "VALIDATED": "auto", "NONE": "none"}
_STOPS = frozenset(
    {
        *("STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "LANGUAGE", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT"),
        *("SPII", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"),
    }
)
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def asked_by(path: str) -> tuple[str, Body] | None:
    """Read the path of a request to the Gemini API, such as `/v1beta/models/NAME:generateContent`. Returns two things:
    the method (here `generateContent`), and the fields that other vendors' APIs have in the body of a request, `model`
    and `stream`. Returns None if the path is not one of a Gemini model call or token count."""
    found = _CALL.search(path)
    if found is None or found.end() != len(path):
        return None
    return found[2], {"model": found[1], "stream": found[2] == "streamGenerateContent"}


def gemini_model(name: str) -> dict[str, Any]:
    """Return the description of the model with this name, in the form in which the Gemini API describes models."""
    return {
        "name": f"models/{name}",
        "version": "001",
        "displayName": name,
        "inputTokenLimit": 1_048_576,
        "outputTokenLimit": 65_536,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def _request(body: Body) -> ModelRequest:
    messages = from_dialect(body, _NAME)
    system = ""
    if messages and isinstance(messages[0], System) and body.get("systemInstruction"):
        system, messages = plain_text(messages[0]), messages[1:]
    config = camel(body.get("toolConfig") or {})
    mode = (config.get("functionCallingConfig") or {}).get("mode")
    groups = [camel(group) for group in body.get("tools") or ()]
    declared = [camel(tool) for group in groups for tool in group.get("functionDeclarations") or ()]
    return ModelRequest(
        messages=messages,
        system=system,
        tools=tuple(
            ToolSpec(
                str(tool.get("name", "")),
                tool.get("description") or "",
                tool.get("parametersJsonSchema") or tool.get("parameters") or {},
            )
            for tool in declared
        ),
        tool_choice=_CHOICES.get(mode, "auto"),  # type: ignore[arg-type]
        max_tokens=(body.get("generationConfig") or {}).get("maxOutputTokens"),
        options={key: value for key, value in body.items() if key not in _OWN},
    )


def _part(block: Block) -> dict[str, Any] | None:
    if isinstance(block, Opaque):
        return dict(block.value) if block.dialect == _NAME else None
    fields = {} if not isinstance(block, (Text, Thinking, ToolCall, Image)) else own(block.extra, _NAME)
    if isinstance(block, Text):
        return {"text": block.text, **fields}
    if isinstance(block, Thinking):
        return {"text": block.text, "thought": True, **fields}
    if isinstance(block, ToolCall):
        arguments = plain(block.arguments)
        arguments = arguments if isinstance(arguments, dict) else {"arguments": arguments}
        return {"functionCall": {"id": block.id, "name": block.name, "args": arguments}, **fields}
    if isinstance(block, Image) and block.data:
        return {"inlineData": {"mimeType": block.media_type, "data": encode_base64(block.data)}, **fields}
    return None


def _parts(answer: Answer) -> list[dict[str, Any]]:
    """Return the content of a response as a list of parts, in the form of the Gemini API. If the response has a
    thought, the first function call (or the last text, if there is no function call) gets a signature of the thought,
    unless it has a signature."""
    written = [part for block in answer.content if (part := _part(block)) is not None]
    thoughts = [block for block in answer.content if isinstance(block, Thinking)]
    calls = [part for part in written if "functionCall" in part]
    texts = [part for part in written if "text" in part and not part.get("thought")]
    signed = calls[:1] or texts[-1:]
    if thoughts and signed and _SIGNATURE not in signed[0]:
        given = next((block.signature for block in thoughts if block.signature), None)
        signature = given or signature_of("".join(block.text for block in thoughts))
        signed[0][_SIGNATURE] = encode_base64(signature.encode())
    return written


def _finish(answer: Answer) -> str:
    if answer.stop in _STOPS:
        return answer.stop
    return {"length": "MAX_TOKENS", "refusal": "SAFETY", None: "STOP"}[stopped_early(answer.stop)]


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the token counts in the form of the Gemini API: tokens of thoughts are counted apart from the rest of the
    output, and tokens written to the cache are not counted apart."""
    counts = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": max(0, usage.output_tokens - usage.reasoning_tokens),
        "totalTokenCount": usage.input_tokens + usage.output_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": usage.input_tokens}],
    }
    counts |= {"thoughtsTokenCount": usage.reasoning_tokens} if usage.reasoning_tokens else {}
    return counts | ({"cachedContentTokenCount": usage.cache_read_tokens} if usage.cache_read_tokens else {})


def _chunk(answer: Answer, parts: list[dict[str, Any]], finish: str = "") -> dict[str, Any]:
    content: dict[str, Any] = {"parts": parts, "role": "model"} if parts else {"role": "model"}
    ended = {"finishReason": finish} if finish else {}
    return {
        "candidates": [{"content": content, **ended, "index": 0}],
        "usageMetadata": _usage(answer.usage),
        "modelVersion": answer.model,
        "responseId": answer.id,
    }


def _whole(answer: Answer, body: Body) -> dict[str, Any]:
    return _chunk(answer, _parts(answer), _finish(answer))


def _events(answer: Answer, body: Body) -> list[Event]:
    return [Event(None, chunk) for chunk in _stream(answer)]


def _stream(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield the pieces in which a response is streamed, as the Gemini API does it. A text comes in several pieces,
    without its signature (a code from the vendor). The last piece of the stream is an empty text, with the signature of
    the last text that has one. A function call comes whole."""
    signature: dict[str, Any] = {}
    for part in _parts(answer):
        if "text" not in part:
            yield _chunk(answer, [part])
            continue
        fields = {key: value for key, value in part.items() if key != _SIGNATURE}
        signature = {_SIGNATURE: part[_SIGNATURE]} if _SIGNATURE in part else signature
        for piece in pieces(part["text"]):
            yield _chunk(answer, [{**fields, "text": piece}])
    yield _chunk(answer, [{"text": "", **signature}], _finish(answer))


def _error(problem: Problem) -> dict[str, Any]:
    status = _STATUSES.get(problem.status, "INTERNAL" if problem.status >= 500 else "INVALID_ARGUMENT")
    message = problem.message
    if problem.overflow:
        size, window = problem.size or 1_100_000, problem.window or 1_048_576
        message = message or f"The input token count ({size}) exceeds the maximum number of tokens allowed ({window})."
    error: dict[str, Any] = {"code": problem.status, "message": message or status.lower(), "status": status}
    if problem.retry_after is not None:
        retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{problem.retry_after:g}s"}
        error["details"] = [retry]
    return {"error": error}


def _stream_error(problem: Problem, answer: Answer, body: Body, sent: int) -> Event:
    return Event(None, _error(problem))


def _is_delta(event: Event) -> bool:
    return any("finishReason" not in candidate for candidate in event.data["candidates"])


GEMINI = Wire("gemini", "call", ("contents",), _request, _whole, _events, _error, _stream_error, _is_delta)
