"""What the agent asks of a model, and what comes back. A vendor's client is one small class with one method."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol

import msgspec

from clew.log import Usage
from clew.messages import Assistant, Message

__all__ = ["Model", "ModelEvent", "ModelRequest", "ModelResponse", "Retrying", "TextDelta", "ThinkingDelta", "ToolSpec"]


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model is told of it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """A JSON schema of an object."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model."""

    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    max_tokens: int | None = None
    """The most that the response may have; None leaves it to the vendor, or where that asks for one, to Clew."""
    output_schema: dict[str, Any] | None = None
    """The JSON schema that the response's text is to have, for vendors that can be told so."""
    options: dict[str, Any] = {}
    """What else the vendor's call takes, by its own names: temperature, reasoning effort, service tier."""


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    """Words of the response, as they come."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking"):
    text: str


class Retrying(msgspec.Struct, frozen=True, tag="retrying"):
    """The call failed and is made again after a pause. What has been streamed of it so far is void."""

    attempt: int
    """The number of the attempt that comes next; the first was 1."""
    after: float
    """Seconds."""
    reason: str
    """What failed, without anything of the conversation."""


class ModelResponse(msgspec.Struct, frozen=True, tag="response"):
    """The whole response: the last event of every call that succeeds."""

    message: Assistant
    usage: Usage
    model: str = ""
    """The name under which the vendor answered; what it cost is looked up by this and by the name that was asked for."""


ModelEvent = TextDelta | ThinkingDelta | Retrying | ModelResponse


class Model(Protocol):
    """Anything that answers a conversation. Implement `stream`, and nothing else is needed."""

    @property
    def name(self) -> str:
        """As a user writes it, `openai:gpt-5` say: on record, and compared when a thread is resumed."""

    @property
    def context_window(self) -> int | None:
        """Tokens that a request and its response may have together; None if that is not known."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Make the call: deltas as they come, and the response as the last event.

        Errors are `ModelError`s. Closing the iterator ends the request.
        """
