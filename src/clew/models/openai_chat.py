"""Calls models through OpenAI's Chat Completions API, with the vendor's official SDK. Most other vendors and local
servers speak this API too."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from clew.errors import InvalidInput
from clew.log import Usage
from clew.messages import Assistant, System, Text
from clew.messages.dialects import from_dialect, to_dialect
from clew.models.base import ModelEvent, ModelRequest, ModelResponse, TextDelta, ThinkingDelta
from clew.models.client import Vendor, is_strict, merged, parameters, without_thinking
from clew.models.retry import MAX_RETRIES, StreamBroken
from clew.models.windows import context_window

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["ChatModel", "OpenAIChatModel", "closed_client", "openai_vendor"]

_OWN_HOSTS = ("openai.com", "openai.azure.com")
_THOUGHTS = ("reasoning_content", "reasoning")
"""Fields in which some vendors send the model's thinking. OpenAI's own models do not send theirs in this API."""


class ChatModel:
    """A model behind OpenAI's Chat Completions API, which many vendors speak: the base class of all such models. The
    subclass for a vendor says how the vendor's endpoint is reached."""

    _prefix = ""
    """What stands before the colon in the model's name."""

    def __init__(
        self, model: str, vendor: Callable[[str], Vendor[AsyncOpenAI]], context_window: int | None = None
    ) -> None:
        """`model` is the vendor's name of the model. `vendor` is a function that takes the name by which the user
        chooses the model, and returns the object that makes the calls. `context_window` is the most tokens of a request
        and its response; if it is None, known models have the window in a built-in table."""
        self._model = model
        self._window = context_window
        self._vendor = vendor(self.name)

    @property
    def name(self) -> str:
        return f"{self._prefix}:{self._model}"

    @property
    def context_window(self) -> int | None:
        return self._window or context_window(self._model)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        def ask(client: AsyncOpenAI, thinking: bool) -> tuple[Callable[..., Any], dict[str, Any], _Builder]:
            body = self._body(request, thinking, str(client.base_url))
            return client.chat.completions.create, body, _Builder(self._cost)

        return self._vendor.stream(request, ask)

    async def aclose(self) -> None:
        """Close the connections to the vendor that were opened on the running event loop. A later call of the model
        opens new ones."""
        await self._vendor.aclose()

    def _limit_name(self, base_url: str) -> str:
        """Return the name of the request field that limits the output tokens, at the endpoint with the address
        `base_url`. Here it is always `max_tokens`, as with most vendors; subclasses for other vendors override this."""
        return "max_tokens"

    def _cost(self, usage: Mapping[str, Any]) -> float | None:
        """Return the cost of a response in US dollars, if the vendor says it. `usage` is the object in the response
        with the token counts. Most vendors do not say it, so this returns None unless a subclass overrides it."""
        return None

    def _body(self, request: ModelRequest, thinking: bool, base_url: str) -> dict[str, Any]:
        messages = request.messages if thinking else without_thinking(request.messages)
        head = [System((Text(request.system),))] if request.system else []
        body: dict[str, Any] = {
            "model": self._model,
            "messages": to_dialect([*head, *messages], "openai-chat"),
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": parameters(tool)},
                }
                for tool in request.tools
            ]
            if request.tool_choice != "auto":
                body["tool_choice"] = request.tool_choice
        if request.max_tokens is not None:
            body[self._limit_name(base_url)] = request.max_tokens
        if request.output_schema is not None:
            schema = request.output_schema
            named = {"name": "output", "schema": schema, "strict": is_strict(schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return merged(body, request.options)


class OpenAIChatModel(ChatModel):
    """A model behind the Chat Completions API: OpenAI's own endpoint, or any other one that speaks this API.

    The SDK reads `OPENAI_API_KEY`, `OPENAI_BASE_URL` and its other environment variables. `settings` are passed to the
    SDK's class `AsyncOpenAI`: `api_key`, `base_url`, `timeout`, `default_headers` … If you give your own `client`, it
    is used instead, and you have to close it.
    """

    _prefix = "openai"

    def __init__(
        self,
        model: str,
        *,
        client: AsyncOpenAI | None = None,
        max_retries: int = MAX_RETRIES,
        context_window: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, lambda name: openai_vendor(model, name, client, settings, max_retries), context_window)

    def _limit_name(self, base_url: str) -> str:
        """Return the name of the request field that limits the output tokens: `max_completion_tokens` if `base_url` is
        on one of OpenAI's own servers, whose newer models refuse the old name, and `max_tokens` for other servers, many
        of which do not know the new name."""
        host = urlsplit(base_url).hostname or ""
        ours = any(host == own or host.endswith("." + own) for own in _OWN_HOSTS)
        return "max_completion_tokens" if ours else "max_tokens"


def openai_vendor(
    model: str,
    name: str,
    client: AsyncOpenAI | None,
    settings: dict[str, Any],
    max_retries: int,
    *,
    maker: str | Callable[..., AsyncOpenAI] = "AsyncOpenAI",
    advice: Callable[[int | None], str] | None = None,
    prepare: Callable[[], None] | None = None,
    extra: str = "openai",
) -> Vendor[AsyncOpenAI]:
    """Return a `Vendor` for a model of OpenAI's Chat Completions or Responses API: an object that makes calls through
    OpenAI's SDK and retries those that fail, at most `max_retries` times each.

    `model` is the vendor's name of the model, and `name` is how the user names it, for error messages. The SDK's client
    is `client` if the user gave one. Otherwise it is made with `settings`, such as `api_key` and `base_url`. Raises
    `InvalidInput` if there are both a client and settings.

    The other arguments are for vendors other than OpenAI. `maker` is the name of the SDK's client class, or a function
    that makes a client. `advice` takes the HTTP status of a failed call and returns what the user should check.
    `prepare` is called on another OS thread before a client is made. `extra` is the extra of Clew that installs the
    SDK.
    """
    return Vendor(
        "openai",
        maker,
        model,
        name=name,
        client=client,
        settings=settings,
        max_retries=max_retries,
        advice=advice or _advice,
        prepare=prepare,
        extra=extra,
    )


def closed_client(sdk: Any, kind: type[AsyncOpenAI], settings: Mapping[str, Any]) -> AsyncOpenAI:
    """Return a client for another vendor's endpoint: an instance of `kind`, a class of OpenAI's SDK. The client sends
    nothing there that is meant for OpenAI: neither the organization and project in OpenAI's environment variables nor
    the key of an administrator. `settings` must have everything else that the SDK would look up in OpenAI's environment
    variables, above all the key and the address. `sdk` is the SDK's package.

    A redirect is an error and is not followed, so that the key and the conversation go to no other host.
    """
    given = dict(settings)
    if given.get("http_client") is None:
        given["http_client"] = sdk.DefaultAsyncHttpxClient(follow_redirects=False)
    client = kind(**given)
    client.organization = settings.get("organization")
    client.project = settings.get("project")
    if hasattr(client, "admin_api_key"):
        client.admin_api_key = None
    return client


def _advice(status: int | None) -> str:
    """Return what the user should check after an error with this HTTP status from an OpenAI endpoint; empty if there is
    no advice."""
    if status in (401, 403):
        return "Check the key in OPENAI_API_KEY and what it may use."
    return "Check the model's name, and OPENAI_BASE_URL if it is set." if status == 404 else ""


class _Builder:
    """Builds a model's response from the chunks in which the Chat Completions API streams it. Fields that Clew does not
    know are kept. `cost` is a function that returns the cost of the response, given the vendor's object with the token
    counts, or None if the vendor does not say it."""

    def __init__(self, cost: Callable[[Mapping[str, Any]], float | None]) -> None:
        self._cost = cost
        self._message: dict[str, Any] = {"role": "assistant"}
        self._calls: list[dict[str, Any]] = []
        self._at: dict[int, dict[str, Any]] = {}
        self._usage: Mapping[str, Any] = {}
        self._model = ""
        self._stop = ""

    def take(self, chunk: Mapping[str, Any]) -> list[TextDelta | ThinkingDelta]:
        self._model = chunk.get("model") or self._model
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices") or []
        if not choices:
            return []
        self._stop = choices[0].get("finish_reason") or self._stop
        delta = dict(choices[0].get("delta") or {})
        for call_delta in delta.pop("tool_calls", None) or []:
            self._add_call(call_delta)
        _add(self._message, {key: value for key, value in delta.items() if key != "role"})
        told: list[TextDelta | ThinkingDelta] = []
        thought = next((delta[key] for key in _THOUGHTS if isinstance(delta.get(key), str) and delta[key]), "")
        if thought:
            told.append(ThinkingDelta(thought))
        if isinstance(delta.get("content"), str) and delta["content"]:
            told.append(TextDelta(delta["content"]))
        return told

    def _add_call(self, delta: Mapping[str, Any]) -> None:
        """Add a streamed piece of a tool call to the call that it belongs to: the call with the same number, or the
        last call if the server does not number its calls. If the piece has another id than that call, it begins a new
        call, because some servers give several calls the same number."""
        index = delta.get("index")
        call_id = delta.get("id")
        held = self._at.get(index) if isinstance(index, int) else (self._calls[-1] if self._calls else None)
        if held is None or (call_id and held.get("id") and held["id"] != call_id):
            held = {}
            self._calls.append(held)
            if isinstance(index, int):
                self._at[index] = held
        for key, value in delta.items():
            if key in ("function", "custom") and isinstance(value, Mapping):
                self._add_body(held.setdefault(key, {}), value)
            elif key != "index" and value is not None:
                held[key] = value

    def _add_body(self, body: dict[str, Any], delta: Mapping[str, Any]) -> None:
        pieces = {key: value for key, value in delta.items() if key != "name" or value != body.get("name")}
        _add(body, pieces)

    def response(self, asked: str) -> ModelResponse:
        if not self._stop:
            raise StreamBroken("a stream that ended before the response did")
        payload = dict(self._message)
        if self._calls:
            for number, made in enumerate(self._calls):
                made["id"] = made.get("id") or f"call_{number}"
            payload["tool_calls"] = self._calls
        answered = self._model or asked
        try:
            (read,) = from_dialect(payload, "openai-chat")
        except (InvalidInput, ValueError):
            raise StreamBroken("a response that does not have the API's format") from None
        message = Assistant(read.content, answered, self._stop)
        return ModelResponse(message, _usage(self._usage), answered, self._cost(self._usage))


def _add(held: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add the fields of a streamed piece of a response, `delta`, to the fields received so far, `held`, which is
    changed in place. A text or a list is appended to the one in `held`, and an object is merged with it. Items of a
    list that have an `index` are merged with the item that has the same index."""
    for key, value in delta.items():
        there = held.get(key)
        if value is None:
            continue
        if isinstance(there, str) and isinstance(value, str):
            held[key] = there + value
        elif isinstance(there, dict) and isinstance(value, Mapping):
            _add(there, value)
        elif isinstance(value, list):
            held[key] = _joined(there if isinstance(there, list) else [], value)
        else:
            held[key] = dict(value) if isinstance(value, Mapping) else value


def _joined(there: list[Any], pieces: list[Any]) -> list[Any]:
    for piece in pieces:
        number = piece.get("index") if isinstance(piece, Mapping) else None
        same = next((one for one in there if isinstance(one, dict) and one.get("index") == number), None)
        if number is not None and same is not None:
            _add(same, {key: value for key, value in piece.items() if key not in ("index", "type", "format", "id")})
        else:
            there.append(dict(piece) if isinstance(piece, Mapping) else piece)
    return there


def _usage(counts: Mapping[str, Any]) -> Usage:
    read, made = counts.get("prompt_tokens_details") or {}, counts.get("completion_tokens_details") or {}
    return Usage(
        input_tokens=counts.get("prompt_tokens") or 0,
        output_tokens=counts.get("completion_tokens") or 0,
        cache_read_tokens=read.get("cached_tokens") or 0,
        cache_write_tokens=read.get("cache_write_tokens") or 0,
        reasoning_tokens=made.get("reasoning_tokens") or 0,
    )
