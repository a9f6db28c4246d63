"""Calls models through OpenAI's Responses API, with the vendor's official SDK.

The vendor is told to store nothing: every request holds the whole conversation, with the model's reasoning in encrypted
form. So a thread can be continued from any machine and from any point.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from clew.errors import InvalidInput
from clew.log import Usage
from clew.messages import Assistant
from clew.messages.dialects import from_dialect, to_dialect
from clew.models.base import ModelEvent, ModelRequest, ModelResponse, TextDelta, ThinkingDelta
from clew.models.client import is_strict, merged, parameters, without_thinking
from clew.models.openai_chat import openai_vendor
from clew.models.retry import MAX_RETRIES, StreamBroken, StreamFailed
from clew.models.windows import context_window

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIResponsesModel"]

_THOUGHTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_ENDS = ("response.completed", "response.incomplete")
_DO_NOT_REASON = ("gpt-3.5", "gpt-4", "chatgpt-")


class OpenAIResponsesModel:
    """A model behind the Responses API: OpenAI's own endpoint, or any other one that speaks this API.

    The SDK reads `OPENAI_API_KEY`, `OPENAI_BASE_URL` and its other environment variables. `settings` are passed to the
    SDK's class `AsyncOpenAI`: `api_key`, `base_url`, `timeout`, `default_headers` … If you give your own `client`, it
    is used instead, and you have to close it.
    """

    def __init__(
        self,
        model: str,
        *,
        client: AsyncOpenAI | None = None,
        max_retries: int = MAX_RETRIES,
        context_window: int | None = None,
        **settings: Any,
    ) -> None:
        self._model = model
        self._window = context_window
        self._vendor = openai_vendor(model, self.name, client, settings, max_retries)

    @property
    def name(self) -> str:
        return f"openai-responses:{self._model}"

    @property
    def context_window(self) -> int | None:
        return self._window or context_window(self._model)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        return self._vendor.stream(
            request, lambda client, thinking: (client.responses.create, self._body(request, thinking), _Builder())
        )

    async def aclose(self) -> None:
        """Close the connections to the vendor that were opened on the running event loop. A later call of the model
        opens new ones."""
        await self._vendor.aclose()

    def _body(self, request: ModelRequest, thinking: bool) -> dict[str, Any]:
        messages = request.messages if thinking else without_thinking(request.messages)
        body: dict[str, Any] = {
            "model": self._model,
            "input": to_dialect(messages, "openai-responses"),
            "store": False,
        }
        if not self._model.startswith(_DO_NOT_REASON):
            body["include"] = ["reasoning.encrypted_content"]
        if request.system:
            body["instructions"] = request.system
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": parameters(tool),
                    "strict": False,  # the default would refuse schemas with optional properties
                }
                for tool in request.tools
            ]
            if request.tool_choice != "auto":
                body["tool_choice"] = request.tool_choice
        if request.max_tokens is not None:
            body["max_output_tokens"] = request.max_tokens
        if request.output_schema is not None:
            schema = request.output_schema
            named = {"type": "json_schema", "name": "output", "schema": schema, "strict": is_strict(schema)}
            body["text"] = {"format": named}
        return merged(body, request.options)


class _Builder:
    """Builds a model's response from the events in which OpenAI's Responses API streams it. The last event usually
    holds the whole response. If it holds no content, the content is put together from the items that were streamed."""

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}
        self._response: Mapping[str, Any] | None = None

    def take(self, event: Mapping[str, Any]) -> list[TextDelta | ThinkingDelta]:
        kind = event.get("type")
        if kind == "response.output_text.delta" and event["delta"]:
            return [TextDelta(event["delta"])]
        if kind in _THOUGHTS and event["delta"]:
            return [ThinkingDelta(event["delta"])]
        if kind == "response.output_item.done":
            self._items[event["output_index"]] = event["item"]
        elif kind in _ENDS:
            self._response = event["response"]
        elif kind == "response.failed":
            raise StreamFailed(event["response"].get("error") or {})
        elif kind == "error":
            raise StreamFailed(event)
        return []

    def response(self, asked: str) -> ModelResponse:
        if self._response is None:
            raise StreamBroken("a stream that ended before the response did")
        answered = str(self._response.get("model") or asked)
        items = self._response.get("output") or [item for _, item in sorted(self._items.items())]
        try:
            read = from_dialect(items, "openai-responses")
        except (InvalidInput, ValueError):
            raise StreamBroken("a response that does not have the API's format") from None
        content = tuple(block for message in read for block in message.content)
        return ModelResponse(Assistant(content, answered, self._stop()), _usage(self._response.get("usage")), answered)

    def _stop(self) -> str:
        """Return why the model's response ended. If the response is incomplete, that is the reason which the vendor
        gives, such as `max_output_tokens`. Otherwise it is the response's status, such as `completed`."""
        response = self._response or {}
        details = response.get("incomplete_details") or {}
        return str(details.get("reason") or response.get("status") or "")


def _usage(counts: Mapping[str, Any] | None) -> Usage:
    counts = counts or {}
    read, made = counts.get("input_tokens_details") or {}, counts.get("output_tokens_details") or {}
    return Usage(
        input_tokens=counts.get("input_tokens") or 0,
        output_tokens=counts.get("output_tokens") or 0,
        cache_read_tokens=read.get("cached_tokens") or 0,
        cache_write_tokens=read.get("cache_write_tokens") or 0,
        reasoning_tokens=made.get("reasoning_tokens") or 0,
    )
