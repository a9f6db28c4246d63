"""The interface of a model: the request that the agent makes, and the events that the model answers with. To support
another vendor, write a class with the method `stream` and two properties, `name` and `context_window`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, Protocol

import msgspec

from clew.log import Usage
from clew.messages import Assistant, Message

__all__ = ["Model", "ModelEvent", "ModelRequest", "ModelResponse", "Retrying", "TextDelta", "ThinkingDelta", "ToolSpec"]


class ToolSpec(msgspec.Struct, frozen=True):
    """What a model is told about a tool: its name, its description and the schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """The JSON schema of the tool's arguments, which must describe an object."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is sent to a model in one call: the conversation, the system prompt, the tools and the options."""

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
    """An event of a model call: a piece of the response's text, as it is streamed."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking"):
    """An event of a model call: a piece of the model's thinking, as it is streamed."""

    text: str


class Retrying(msgspec.Struct, frozen=True, tag="retrying"):
    """The event which reports that a model call failed and will be made again after a pause. The pieces of text that
    came before this event belong to the failed attempt and must be dropped."""

    attempt: int
    """The number of the next attempt; the first was 1."""
    after: float
    """The pause before the next attempt, in seconds."""
    reason: str
    """What failed, without any content of the conversation."""


class ModelResponse(msgspec.Struct, frozen=True, tag="response"):
    """The complete response of a model. It is the last event of every model call that succeeds."""

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
    """The interface of an object that can answer a conversation. An implementation needs a name, a context window and
    the method `stream`."""

    @property
    def name(self) -> str:
        """The name by which a user chooses the model, for example `openai:gpt-5`. The thread records it, so that a
        resumed run can notice if it uses another model."""

    @property
    def context_window(self) -> int | None:
        """The most tokens that a request and its response may have together; None if unknown."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Call the model. Yields pieces of text and thinking as they come, and the complete response as the last event.

        An error that the vendor reports is raised as `ModelError`. Closing the iterator ends the request.
        """
