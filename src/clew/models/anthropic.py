"""Calls models through Anthropic's Messages API, with the vendor's official SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from clew.errors import InvalidInput
from clew.log import Usage
from clew.messages import Assistant, Block, System, Text, ToolCall
from clew.messages.dialects import from_dialect, to_dialect
from clew.models.base import ModelEvent, ModelRequest, ModelResponse, TextDelta, ThinkingDelta
from clew.models.client import Vendor, merged, parameters, without_thinking
from clew.models.retry import MAX_RETRIES, StreamBroken
from clew.models.windows import context_window, output_limit

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

__all__ = ["AnthropicModel"]

_USUAL_OUTPUT = 32_000
_LEAST_OUTPUT = 8_192
_CACHE = {"type": "ephemeral"}
_HOLD_PARTS = ("tools", "system", "messages", "content")


class AnthropicModel:
    """A model of Anthropic, or of any endpoint that speaks Anthropic's Messages API.

    The SDK reads `ANTHROPIC_API_KEY`, `ANTHROPIC_BASE_URL` and its other environment variables. `settings` are passed
    to the SDK's class `AsyncAnthropic`: `api_key`, `base_url`, `timeout`, `default_headers` … If you give your own
    `client`, it is used instead, and you have to close it. With `cache`, the unchanging beginning of each request is
    marked for the vendor's cache, which makes these tokens cheaper.
    """

    def __init__(
        self,
        model: str,
        *,
        client: AsyncAnthropic | None = None,
        max_retries: int = MAX_RETRIES,
        context_window: int | None = None,
        cache: bool = True,
        **settings: Any,
    ) -> None:
        self._model = model
        self._window = context_window
        self._cache = cache
        self._vendor: Vendor[AsyncAnthropic] = Vendor(
            "anthropic",
            "AsyncAnthropic",
            model,
            name=self.name,
            client=client,
            settings=settings,
            max_retries=max_retries,
            advice=_advice,
        )

    @property
    def name(self) -> str:
        return f"anthropic:{self._model}"

    @property
    def context_window(self) -> int | None:
        return self._window or context_window(self._model)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        return self._vendor.stream(
            request, lambda client, thinking: (client.messages.create, self._body(request, thinking), _Builder())
        )

    async def aclose(self) -> None:
        """Close the connections to the vendor that were opened on the running event loop. A later call of the model
        opens new ones."""
        await self._vendor.aclose()

    def _body(self, request: ModelRequest, thinking: bool) -> dict[str, Any]:
        messages = request.messages if thinking else without_thinking(request.messages)
        head = [System((Text(request.system),))] if request.system else []
        body: dict[str, Any] = {"model": self._model, **to_dialect([*head, *messages], "anthropic")}
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": parameters(tool)}
                for tool in request.tools
            ]
            if request.tool_choice != "auto":
                body["tool_choice"] = {"type": "any" if request.tool_choice == "required" else "none"}
        if request.output_schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": _fitted(request.output_schema)}}
        body = merged(body, request.options)
        body.setdefault("max_tokens", request.max_tokens or self._most_output(request.options))
        return _with_cache_hints(body) if self._cache else body

    def _most_output(self, options: Mapping[str, Any]) -> int:
        """Return the limit of output tokens to send with a request for which the user sets none, because Anthropic's
        API requires a limit. Usually this is 32,000 (`_USUAL_OUTPUT`), or the model's own limit if that is lower. If
        `options` give the model a thinking budget of at least that many tokens, the result is the budget and 8,192
        tokens more for an answer."""
        usual = min(_USUAL_OUTPUT, output_limit(self._model) or _LEAST_OUTPUT)
        thinking = options.get("thinking")
        budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
        return usual if not isinstance(budget, int) or budget < usual else budget + _LEAST_OUTPUT


def _with_cache_hints(body: dict[str, Any]) -> dict[str, Any]:
    """Return the request body with marks that tell the vendor which parts to cache: the tools, the system prompt, and
    the conversation so far. The next request begins with the same parts.

    If the user's options already have such marks, nothing is added: the user knows better where they belong, and the
    API accepts at most four.
    """
    if _is_marked(body):
        return body
    for key in ("tools", "system"):
        parts = body.get(key)
        if isinstance(parts, list) and parts:
            body[key] = [*parts[:-1], {**parts[-1], "cache_control": _CACHE}]
    for message in reversed(body["messages"]):
        if message["role"] == "user":
            message["content"][-1]["cache_control"] = _CACHE
            break
    return body


def _is_marked(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "cache_control" in value or any(_is_marked(value.get(key)) for key in _HOLD_PARTS)
    return isinstance(value, list) and any(_is_marked(one) for one in value)


def _fitted(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema for the model's output, reduced by the vendor's SDK to what Anthropic's API can enforce.
    Raises `InvalidInput` if the API does not accept the schema at all."""
    from anthropic import transform_schema

    try:
        return transform_schema(schema)
    except ValueError as error:
        raise InvalidInput(f"the API does not accept the output schema: {error}") from None


def _advice(status: int | None) -> str:
    if status in (401, 403):
        return "Check the key in ANTHROPIC_API_KEY and what it may use."
    return "Check the model's name, and ANTHROPIC_BASE_URL if it is set." if status == 404 else ""


class _Builder:
    """Builds a model's response from the events in which Anthropic's API streams it. Fields that Clew does not know are
    kept."""

    def __init__(self) -> None:
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}
        self._usage: dict[str, Any] = {}
        self._ended = False

    def take(self, event: Mapping[str, Any]) -> list[TextDelta | ThinkingDelta]:
        kind = event.get("type")
        if kind == "message_start":
            self._message = dict(event["message"])
            self._count(self._message.pop("usage", None))
        elif kind == "content_block_start":
            self._blocks[event["index"]] = dict(event["content_block"])
        elif kind == "content_block_delta":
            told = self._add(event["index"], event["delta"])
            return [] if told is None else [told]
        elif kind == "message_delta" and self._message is not None:
            self._message.update(event["delta"])
            self._count(event.get("usage"))
        elif kind == "message_stop":
            self._ended = True
        return []

    def _count(self, usage: Any) -> None:
        """Update the token counts of the response that is being received. `usage` holds totals up to now, each of which
        replaces the earlier total. A total that is missing in `usage` stays as it was."""
        self._usage.update({key: value for key, value in (usage or {}).items() if value is not None})

    def _add(self, index: int, delta: Mapping[str, Any]) -> TextDelta | ThinkingDelta | None:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        kind = delta["type"]
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            return None
        if kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
            return None
        for key, value in delta.items():
            if key != "type":
                held = block.get(key)
                block[key] = held + value if isinstance(held, str) and isinstance(value, str) else value
        if kind == "text_delta" and delta["text"]:
            return TextDelta(delta["text"])
        return ThinkingDelta(delta["thinking"]) if kind == "thinking_delta" and delta["thinking"] else None

    def response(self, asked: str) -> ModelResponse:
        if self._message is None or not self._ended:
            raise StreamBroken("a stream that ended before the response did")
        odd: dict[int, str] = {}
        parts = []
        for place, (index, block) in enumerate(sorted(self._blocks.items())):
            if written := self._inputs.get(index):
                block["input"], is_odd = _input(written)
                if is_odd:
                    odd[place] = written
            parts.append(block)
        try:
            (message,) = from_dialect({**self._message, "role": "assistant", "content": parts}, "anthropic")
        except (InvalidInput, ValueError):
            raise StreamBroken("a response that does not have the API's format") from None
        content: list[Block] = list(message.content)
        for place, written in odd.items():
            block_there = content[place]
            if isinstance(block_there, ToolCall):
                content[place] = msgspec.structs.replace(block_there, arguments=written)
        answered = str(self._message.get("model") or asked)
        stop = str(self._message.get("stop_reason") or "")
        return ModelResponse(Assistant(tuple(content), answered, stop), _usage(self._usage), answered)


def _input(written: str) -> tuple[Any, bool]:
    """Decode the JSON text of a tool call's arguments. Returns the arguments and False. If the text is cut off or is
    not a JSON object, returns an empty dict and True; the caller then uses the text itself as the arguments."""
    try:
        value = json.loads(written)
    except ValueError:
        return {}, True
    return (value, False) if isinstance(value, dict) else ({}, True)


def _usage(counts: Mapping[str, Any]) -> Usage:
    """Convert the token counts in a response of Anthropic's API to a `Usage`. The API does not include cached tokens in
    the input tokens; the returned `Usage` does."""
    read, written = counts.get("cache_read_input_tokens") or 0, counts.get("cache_creation_input_tokens") or 0
    details = counts.get("output_tokens_details") or {}
    return Usage(
        input_tokens=(counts.get("input_tokens") or 0) + read + written,
        output_tokens=counts.get("output_tokens") or 0,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=details.get("thinking_tokens") or 0,
    )
