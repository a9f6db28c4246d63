"""Models of all APIs against one server, and what they say."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

import httpx2

from clew.messages import Message, user
from clew.models import Model, ModelEvent, ModelRequest, ModelResponse, TextDelta, ThinkingDelta, resolve_model
from clew.models.anthropic import AnthropicModel
from clew.models.gemini import GeminiModel
from clew.models.openai_chat import ChatModel
from clew.models.openai_responses import OpenAIResponsesModel
from clew.testing import ModelServer

VENDORS = ("anthropic", "openai", "openai-responses", "gemini", "azure", "ollama", "openrouter")
OF_CHAT = ("openai", "azure", "ollama", "openrouter")
"""Those that speak chat completions, which tell nothing of the model's thinking."""
VendorModel = AnthropicModel | GeminiModel | ChatModel | OpenAIResponsesModel
PNG = b"\x89PNG\r\n\x1a\n not much of a picture"
KEY = "sk-dummy-0123456789abcdef"


def model_at(server: ModelServer, vendor: str, name: str = "scripted", **settings: Any) -> VendorModel:
    if vendor == "azure":
        settings = {"azure_endpoint": server.url, "api_version": "2024-10-21", **settings}
        return resolved(f"{vendor}:{name}", api_key=KEY, **settings)
    url = server.openai_url if vendor in (*OF_CHAT, "openai-responses") else server.url
    return resolved(f"{vendor}:{name}", base_url=url, api_key=KEY, **settings)


def resolved(text: str, **settings: Any) -> VendorModel:
    model: Any = resolve_model(text, **settings)
    assert isinstance(model, VendorModel)
    return model


def ask(*messages: Message | str, **fields: Any) -> ModelRequest:
    said = tuple(user(message) if isinstance(message, str) else message for message in messages or ("Hello",))
    return ModelRequest(messages=said, **fields)


async def events_of(model: Model, request: ModelRequest) -> list[ModelEvent]:
    stream = model.stream(request)
    assert isinstance(stream, AsyncGenerator)
    async with aclosing(stream) as events:
        return [event async for event in events]


async def response_of(model: Model, request: ModelRequest) -> ModelResponse:
    *_, last = await events_of(model, request)
    assert isinstance(last, ModelResponse)
    return last


def texts(events: Iterable[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def thoughts(events: Iterable[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ThinkingDelta))


def last_body(server: ModelServer) -> dict[str, Any]:
    body = server.requests[-1].body
    assert isinstance(body, dict)
    return body


class Wire:
    """What a vendor sends, byte by byte, to the real SDK: for what no well-behaved server says."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[httpx2.Request] = []
        self._answers = list(answers)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(json.loads(request.content))
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def model(self, text: str, **settings: Any) -> VendorModel:
        client = httpx2.AsyncClient(transport=httpx2.MockTransport(self))
        return resolved(text, http_client=client, **{"api_key": KEY, **settings})


def sse(*events: dict[str, Any] | str) -> httpx2.Response:
    """A stream of these events."""
    lines = []
    for event in events:
        name = event.get("type") if isinstance(event, dict) else None
        data = json.dumps(event) if isinstance(event, dict) else event
        lines.append((f"event: {name}\n" if name else "") + f"data: {data}\n\n")
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, text="".join(lines))


def refusal(status: int, message: str = "no", **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, headers=named, json={"error": {"message": message, "type": "some_error"}})
