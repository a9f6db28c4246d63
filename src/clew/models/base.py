"""The protocol of a model: what the agent asks, and what comes back. A vendor's client is one small class with one
method."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol

import msgspec

from clew.log import Usage
from clew.messages import Assistant, Message

__all__ = ["Model", "ModelEvent", "ModelRequest", "ModelResponse", "Retrying", "TextDelta", "ThinkingDelta", "ToolSpec"]


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as it is described to a model."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """The JSON schema of an object."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model."""

    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    max_tokens: int | None = None
    """The most tokens that the response may have. None leaves it to the vendor, or to Clew if the vendor requires a
    limit."""
    output_schema: dict[str, Any] | None = None
    """The JSON schema for the text of the response, for vendors that support one."""
    options: dict[str, Any] = {}
    """Other arguments of the vendor's call, by the vendor's own names: temperature, reasoning effort, service tier."""


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    """A piece of the response's text, as it comes."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking"):
    """A piece of the model's thinking, as it comes."""

    text: str


class Retrying(msgspec.Struct, frozen=True, tag="retrying"):
    """The call failed and is made again after a pause. What was streamed of it so far is void."""

    attempt: int
    """The number of the next attempt; the first was 1."""
    after: float
    """The pause in seconds."""
    reason: str
    """What failed, without any content of the conversation."""


class ModelResponse(msgspec.Struct, frozen=True, tag="response"):
    """The complete response: the last event of every call that succeeds."""

    message: Assistant
    usage: Usage
    model: str = ""
    """The model name in the vendor's answer. The cost is looked up by this name and by the name that was asked for."""


ModelEvent = TextDelta | ThinkingDelta | Retrying | ModelResponse


class Model(Protocol):
    """Anything that answers a conversation. Beside its name and context window, an implementation needs only
    `stream`."""

    @property
    def name(self) -> str:
        """The name as a user writes it, for example `openai:gpt-5`. It is recorded, and compared when a thread is
        resumed."""

    @property
    def context_window(self) -> int | None:
        """The most tokens of a request and its response together; None if unknown."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Make the call. Yields deltas as they come, and the response as the last event.

        Errors are raised as `ModelError`. Closing the iterator ends the request.
        """
