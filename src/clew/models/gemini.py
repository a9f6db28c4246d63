"""Calls models through Google's Gemini API, with the vendor's official SDK."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from clew.errors import InvalidInput
from clew.log import Usage
from clew.messages import Assistant, System, Text
from clew.messages.dialects import from_dialect, to_dialect
from clew.messages.dialects.shared import encode_base64
from clew.models.base import ModelEvent, ModelRequest, ModelResponse, TextDelta, ThinkingDelta
from clew.models.client import Clients, merged, parameters, without_thinking
from clew.models.retry import MAX_RETRIES, NoCredentials, StreamBroken, StreamFailed, call
from clew.models.windows import context_window

if TYPE_CHECKING:
    import ssl

    import httpx
    from google import genai
    from google.genai import types

__all__ = ["GeminiModel"]

_TIMEOUT = 600.0
"""Seconds to wait for a connection or for further data if the user sets no timeout: the SDK would wait for ever."""
_HTTP = ("base_url", "timeout", "default_headers", "http_client")
"""Settings that the SDK has in its `http_options`, under these or other names. The SDKs of the other vendors have them
as arguments, so Clew takes them as arguments too."""
_UNSIGNED = re.compile(r"(?:.*/)?(?:gemini-[12]\b|gemma)")
"""The names of models that do not ask for a signature with each function call. Models since Gemini 3 do."""
_NO_SIGNATURE = encode_base64(b"skip_thought_signature_validator")
"""The value that the vendor asks for in place of a signature if another model made the function call."""
_SPOILT = ("MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL")
_UPPER = re.compile(r"(?<=[a-z0-9])([A-Z])")


class GeminiModel:
    """A model behind the Gemini API: Google's, also on Vertex AI, or any endpoint that speaks this API.

    The SDK reads `GEMINI_API_KEY` or `GOOGLE_API_KEY`, `GOOGLE_GEMINI_BASE_URL` and its other environment variables.
    `settings` are passed to the SDK's class `Client`: `api_key`, `vertexai`, `project`, `location`, `http_options` …
    Four more settings can be given, which the SDK has inside its `http_options`: `base_url`, `timeout` in seconds,
    `default_headers` and `http_client` (an `httpx.AsyncClient`). If you give your own `client`, it is used instead, and
    you have to close it.

    With `streaming=False` each response is requested in one piece, for endpoints that cannot stream.
    """

    def __init__(
        self,
        model: str,
        *,
        client: genai.Client | None = None,
        max_retries: int = MAX_RETRIES,
        context_window: int | None = None,
        streaming: bool = True,
        **settings: Any,
    ) -> None:
        if client is not None and settings:
            raise InvalidInput(
                f"give these settings to your own client, not to the model: {', '.join(sorted(settings))}"
            )
        timeout = settings.get("timeout")
        if timeout is not None and not isinstance(timeout, (int, float)):
            raise InvalidInput("the timeout of a gemini: model is a number of seconds")
        self._model = model
        self._window = context_window
        self._max_retries = max_retries
        self._streaming = streaming
        self._key = settings.get("api_key")
        self._clients: Clients[_Client] = Clients(
            "google.genai",
            f"the model {self.name!r}",
            lambda sdk: _made(sdk, settings),
            None if client is None else _Client(client),
            extra="gemini",
        )

    @property
    def name(self) -> str:
        return f"gemini:{self._model}"

    @property
    def context_window(self) -> int | None:
        return self._window or context_window(self._model)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        async def attempt(thinking: bool) -> AsyncGenerator[ModelEvent, None]:
            client = await self._clients.get()
            builder = _Builder()
            body = self._body(request, thinking)
            async with aclosing(client.chunks(self._model, body, self._streaming)) as chunks:
                async for chunk in chunks:
                    for told in builder.take(chunk):
                        yield told
            yield builder.response(self._model)

        return call(
            attempt,
            request,
            model=self.name,
            max_retries=self._max_retries,
            secrets=self._secrets,
            advice=_advice,
        )

    async def aclose(self) -> None:
        """Close the connections to the vendor that were opened on the running event loop. A later call of the model
        opens new ones."""
        await self._clients.aclose()

    def _secrets(self) -> list[str]:
        keys = (self._key, os.environ.get("GOOGLE_API_KEY"), os.environ.get("GEMINI_API_KEY"))
        return [key for key in keys if isinstance(key, str)]

    def _body(self, request: ModelRequest, thinking: bool) -> dict[str, Any]:
        """Return the arguments for the SDK's method that makes a model call: `contents` (the conversation) and `config`
        (everything else), as JSON values. `thinking` says whether to send the model's thinking of earlier turns."""
        messages = request.messages if thinking else without_thinking(request.messages)
        head = [System((Text(request.system),))] if request.system else []
        payload = to_dialect([*head, *messages], "gemini")
        config: dict[str, Any] = {"automatic_function_calling": {"disable": True}}
        if "systemInstruction" in payload:
            config["system_instruction"] = payload["systemInstruction"]
        if request.tools:
            declared = [
                {"name": tool.name, "description": tool.description, "parameters_json_schema": parameters(tool)}
                for tool in request.tools
            ]
            config["tools"] = [{"function_declarations": declared}]
            if request.tool_choice != "auto":
                mode = "ANY" if request.tool_choice == "required" else "NONE"
                config["tool_config"] = {"function_calling_config": {"mode": mode}}
        if request.max_tokens is not None:
            config["max_output_tokens"] = request.max_tokens
        if request.output_schema is not None:
            config["response_mime_type"] = "application/json"
            config["response_json_schema"] = request.output_schema
        options = {_UPPER.sub(r"_\1", key).lower(): value for key, value in request.options.items()}
        contents = payload["contents"] if _UNSIGNED.match(self._model) else _signed(payload["contents"])
        return {"contents": contents, "config": merged(config, options)}


def _signed(contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `contents` (a conversation in the form of Gemini's API) with a signature for the first function call of
    each response. Gemini models since version 3 refuse a function call without one, and a call that another vendor's
    model made has none. Such a call gets a fixed value that Google accepts in place of a signature."""
    for content in contents:
        first = next((part for part in content["parts"] if "functionCall" in part), None)
        if first is not None:
            first.setdefault("thoughtSignature", _NO_SIGNATURE)
    return contents


_OPENED: ContextVar[list[httpx.Response] | None] = ContextVar("clew_gemini_opened", default=None)
"""Where to put the HTTP responses of the stream that is being read. The SDK does not close them when its stream is
abandoned, so Clew does."""


async def _note_opened(response: httpx.Response) -> None:
    opened = _OPENED.get()
    if opened is not None:
        opened.append(response)


class _Client:
    """A client of Google's SDK, for one event loop. `http` is the client's HTTP client if Clew made it and has to close
    it, else None."""

    def __init__(self, client: genai.Client, http: Any = None) -> None:
        self._client = client
        self._http = http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
        await self._client.aio.aclose()
        self._client.close()

    async def chunks(self, model: str, body: dict[str, Any], streaming: bool) -> AsyncGenerator[dict[str, Any], None]:
        """Make one request for a response of the model, and yield the pieces of the response as the API's JSON. `body`
        has the contents (the conversation) and the configuration of the request. If `streaming` is False, the response
        comes in one piece. Closing the iterator ends the request."""
        from google.genai import types

        contents = _checked(types.Content, body["contents"])
        config = _config(types, body["config"])
        models = self._client.aio.models
        if not streaming:
            with _understood():
                whole = await models.generate_content(model=model, contents=contents, config=config)
            yield _json(whole)
            return
        opened: list[httpx.Response] = []
        stream = await models.generate_content_stream(model=model, contents=contents, config=config)
        try:
            while True:
                token = _OPENED.set(opened)
                try:
                    with _understood():
                        chunk = await anext(stream)
                except StopAsyncIteration:
                    return
                finally:
                    _OPENED.reset(token)
                yield _json(chunk)
        finally:
            for response in opened:
                await response.aclose()


@contextmanager
def _understood() -> Iterator[None]:
    """Run the `with` block, and turn certain errors of Google's SDK in it into Clew's. If the SDK cannot convert the
    response, raise `StreamBroken`; if it cannot convert the request, raise `InvalidInput`."""
    try:
        yield
    except ValueError as error:
        kinds = {cls.__name__ for cls in type(error).__mro__}
        if "ValidationError" in kinds:  # its text would quote the response
            raise StreamBroken("a response that does not have the API's format") from None
        if kinds & {"UnknownApiResponseError", "JSONDecodeError", "UnicodeError", "GoogleAuthError"}:
            raise
        raise InvalidInput(f"the vendor's SDK does not take this request: {error}") from None


def _made(sdk: Any, settings: Mapping[str, Any]) -> _Client:
    """Return a client of Google's SDK with the user's settings. Raises `NoCredentials` if neither a key nor Google's
    cloud platform is set.

    The client uses an HTTP client of the package httpx that Clew makes and closes, unless the user chose another one.
    By itself the SDK would use the package aiohttp if that is installed, and aiohttp waits up to ten seconds before it
    reports a failed connection.
    """
    import httpx

    http_options = settings.get("http_options") or {}
    options = sdk.types.HttpOptions.model_validate(http_options).model_copy()
    seconds = settings.get("timeout", (options.timeout or _TIMEOUT * 1000) / 1000)
    options.timeout = None if seconds is None else int(seconds * 1000)
    options.base_url = settings.get("base_url") or options.base_url
    headers = settings.get("default_headers")
    if headers:
        options.headers = {**(options.headers or {}), **headers}
    if not (_has_key(settings) or _is_vertex(settings)):
        raise NoCredentials("no key was given")
    own = None
    http = settings.get("http_client") or options.httpx_async_client
    if http is None and options.aiohttp_client is None and not options.async_client_args:
        trusted = _trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        http = own = httpx.AsyncClient(follow_redirects=True, timeout=seconds, verify=trusted)
        options.client_args = options.client_args or {"verify": trusted}
        options.async_client_args = {"ssl": trusted}
    if http is not None:
        options.httpx_async_client = http
        hooks = http.event_hooks
        if _note_opened not in hooks["response"]:
            http.event_hooks = {**hooks, "response": [*hooks["response"], _note_opened]}
    others = {key: value for key, value in settings.items() if key not in (*_HTTP, "http_options")}
    return _Client(sdk.Client(**others, http_options=options), own)


@lru_cache(maxsize=4)
def _trusted(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return an SSL context with the certificates that httpx trusts. `file` and `folder` are the values of the
    environment variables in which httpx looks up where these are; the context is made once for each pair of values. It
    takes 20 ms to make, and the SDK would make two more for clients that Clew does not use."""
    import httpx

    return httpx.create_ssl_context()


def _has_key(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("api_key") or os.environ.get("GOOGLE_API_KEY") or os.environ.get("GEMINI_API_KEY"))


def _is_vertex(settings: Mapping[str, Any]) -> bool:
    """Return whether the user chose Vertex AI, the API on Google's cloud platform, where a project takes the place of a
    key. The choice is in `settings` or in environment variables."""
    if any(settings.get(name) for name in ("vertexai", "enterprise", "credentials", "project")):
        return True
    chosen = (os.environ.get(name, "") for name in ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"))
    return any(one.lower() in ("1", "true") for one in chosen)


def _checked(kind: type[types.Content], contents: list[dict[str, Any]]) -> list[Any]:
    """Return the contents of a request (the conversation, as JSON values) as objects of the class `kind` of Google's
    SDK. Raises `InvalidInput` if the installed version of the SDK does not accept something in the contents."""
    return [_validated(kind, content, f"content {number}") for number, content in enumerate(contents)]


def _validated(kind: Any, value: Any, what: str) -> Any:
    from pydantic import ValidationError

    try:
        return kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        places = {".".join(str(step) for step in found["loc"]) for found in error.errors(include_input=False)}
        raise InvalidInput(
            f"the installed google-genai does not take {what} of the request ({', '.join(sorted(places))}). "
            "Correct it, or install a newer version."
        ) from None


def _config(types: Any, config: dict[str, Any]) -> Any:
    """Return the configuration of a request as an object of Google's SDK. Options for which this object has no field,
    and the items of `extra_body`, are added to the body of the HTTP request; `extra_headers` are added to its headers.
    Raises `InvalidInput` for options that the SDK does not accept. `types` is the SDK's module of that name."""
    known = types.GenerateContentConfig.model_fields
    ours = {key: value for key, value in config.items() if key in known and key not in ("http_options", "tools")}
    headers = config.get("extra_headers") or {}
    body = {key: value for key, value in config.items() if key not in known and not key.startswith("extra_")}
    body |= config.get("extra_body") or {}
    http = types.HttpOptions.model_validate(config.get("http_options") or {}).model_copy()
    if headers:
        http.headers = {**(http.headers or {}), **headers}
    if body:
        http.extra_body = {**(http.extra_body or {}), **body}
    try:
        return types.GenerateContentConfig(**ours, tools=config.get("tools"), http_options=http)
    except ValueError as error:
        told = getattr(error, "errors", None)
        places = {str(found["loc"][0]) for found in told(include_input=False)} if callable(told) else set()
        raise InvalidInput(f"the vendor's SDK does not take these options: {', '.join(sorted(places))}") from None


def _json(chunk: Any) -> dict[str, Any]:
    left_out = {"sdk_http_response", "parsed", "automatic_function_calling_history"}
    read: dict[str, Any] = json.loads(chunk.model_dump_json(by_alias=True, exclude_none=True, exclude=left_out))
    return read


def _advice(status: int | None) -> str:
    if status in (401, 403):
        return "Check the key in GEMINI_API_KEY and what it may use."
    return "Check the model's name, and GOOGLE_GEMINI_BASE_URL if it is set." if status == 404 else ""


class _Builder:
    """Builds a model's response from the pieces in which Gemini's API streams it."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        self._candidate: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._model = ""
        self._id = ""
        self._stop = ""

    def take(self, chunk: Mapping[str, Any]) -> list[TextDelta | ThinkingDelta]:
        self._model = chunk.get("modelVersion") or self._model
        self._id = chunk.get("responseId") or self._id
        self._usage.update(chunk.get("usageMetadata") or {})
        blocked = (chunk.get("promptFeedback") or {}).get("blockReason")
        if blocked:
            said = chunk["promptFeedback"].get("blockReasonMessage") or ""
            raise StreamFailed({"code": "prompt_blocked", "message": f"{blocked} {said}".strip()})
        candidates = chunk.get("candidates") or []
        if not candidates:
            return []
        candidate = candidates[0]
        self._stop = candidate.get("finishReason") or self._stop
        self._candidate.update({key: value for key, value in candidate.items() if key != "content"})
        told: list[TextDelta | ThinkingDelta] = []
        for part in (candidate.get("content") or {}).get("parts") or []:
            self._add(dict(part))
            if part.get("text"):
                told.append(ThinkingDelta(part["text"]) if part.get("thought") else TextDelta(part["text"]))
        return told

    def _add(self, part: dict[str, Any]) -> None:
        """Add a streamed part to the response. A text is joined to the text before it, so that the text stays one part.
        If the last piece of a text has a signature, which is for the whole text, its words are joined too, and the
        signature is put into a part of its own with an empty text, as the vendor sometimes sends it."""
        last = self._parts[-1] if self._parts else {}
        if part.keys() == {"text", "thoughtSignature"} and part["text"] and last.keys() == {"text"}:
            last["text"] += part["text"]
            part = {**part, "text": ""}
        is_words = part.keys() <= {"text", "thought"} and isinstance(part.get("text"), str)
        if is_words and last.keys() == part.keys() and last.get("thought") == part.get("thought"):
            last["text"] += part["text"]
        elif not is_words or part["text"]:
            self._parts.append(part)

    def response(self, asked: str) -> ModelResponse:
        made = [part["functionCall"] for part in self._parts if isinstance(part.get("functionCall"), dict)]
        if not self._stop:
            raise StreamBroken("a stream that ended before the response did")
        if self._stop in _SPOILT and not made:
            raise StreamBroken(f"a response that the vendor could not read ({self._stop})")
        for number, function_call in enumerate(made):
            function_call["id"] = function_call.get("id") or f"call_{self._id}_{number}"
        candidate = {**self._candidate, "finishReason": self._stop, "content": {"parts": self._parts}}
        answered = self._model or asked
        try:
            (message,) = from_dialect({"candidates": [candidate]}, "gemini")
        except (InvalidInput, ValueError):
            raise StreamBroken("a response that does not have the API's format") from None
        return ModelResponse(Assistant(message.content, answered, self._stop), _usage(self._usage), answered)


def _usage(counts: Mapping[str, Any]) -> Usage:
    """Convert the token counts in a response of Gemini's API to a `Usage`. The API does not include thoughts in the
    output tokens, nor what its own tools read in the prompt tokens; the returned `Usage` includes both."""
    thoughts = counts.get("thoughtsTokenCount") or 0
    return Usage(
        input_tokens=(counts.get("promptTokenCount") or 0) + (counts.get("toolUsePromptTokenCount") or 0),
        output_tokens=(counts.get("candidatesTokenCount") or 0) + thoughts,
        cache_read_tokens=counts.get("cachedContentTokenCount") or 0,
        reasoning_tokens=thoughts,
    )
