"""The protocol of a model: what the agent asks, and what comes back. To support a vendor, write one class with one
method, `stream`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
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
    """The JSON schema of the tool's arguments, which must describe an object."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is sent in one call of a model."""

    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    max_tokens: int | None = None
    """The most tokens that the response may have. None leaves it to the vendor, or to Clew if the vendor requires a
    limit."""
    output_schema: dict[str, Any] | None = None
    """The JSON schema that the text of the response must follow. It is used only with vendors that support it."""
    options: dict[str, Any] = {}
    """Other arguments of the vendor's call, by the vendor's own names: temperature, reasoning effort, service tier."""
    before_retry: Callable[[], Awaitable[None]] | None = None
    """A function to await right before each further attempt at this call. The agent checks in it that this process still
    holds the thread, and raises `LeaseLost` if not. A model that retries by itself has to call it too."""


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    """A piece of the response's text, as it is streamed."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking"):
    """A piece of the model's thinking, as it is streamed."""

    text: str


class Retrying(msgspec.Struct, frozen=True, tag="retrying"):
    """Reports that the call failed and is made again after a pause. Pieces of text that were streamed before belong to
    the failed attempt and must be dropped."""

    attempt: int
    """The number of the next attempt; the first was 1."""
    after: float
    """The pause before the next attempt, in seconds."""
    reason: str
    """What failed, without any content of the conversation."""


class ModelResponse(msgspec.Struct, frozen=True, tag="response"):
    """The complete response. It is the last event of every call that succeeds."""

    message: Assistant
    usage: Usage
    model: str = ""
    """The model's name in the vendor's answer. Its price is looked up by this name and by the name that was asked for.
    """
    cost: float | None = None
    """What the vendor says that it charges for this response, in US dollars. It goes before any price. None if the
    vendor does not say."""


ModelEvent = TextDelta | ThinkingDelta | Retrying | ModelResponse


class Model(Protocol):
    """Anything that can answer a conversation. An implementation needs a name, a context window and the method
    `stream`."""

    @property
    def name(self) -> str:
        """The name by which a user chooses the model, for example `openai:gpt-5`. It is recorded in the thread, and
        compared when the thread is resumed."""

    @property
    def context_window(self) -> int | None:
        """The most tokens of a request and its response together; None if unknown."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Call the model. Yields pieces of text and thinking as they come, and the complete response as the last event.

        An error of the vendor is raised as `ModelError`. Closing the iterator ends the request.
        """
