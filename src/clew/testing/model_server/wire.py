"""What the three APIs have in common: an answer before it is put into a vendor's form, and the functions of a vendor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from clew.log import Usage
from clew.messages import Block, ToolCall
from clew.messages.dialects import Dialect
from clew.models.base import ModelRequest

__all__ = ["Answer", "Event", "Problem", "Wire", "calls_in", "stopped_early"]

Body = dict[str, Any]

_TOO_LONG = frozenset({"max_tokens", "length", "max_output_tokens", "model_context_window_exceeded"})
_REFUSED = frozenset({"refusal", "content_filter"})


class Event(NamedTuple):
    """One event of a stream. Without a name it is data alone."""

    name: str | None
    data: Any

    def encoded(self) -> bytes:
        data = self.data if isinstance(self.data, str) else msgspec.json.encode(self.data).decode()
        head = f"event: {self.name}\n" if self.name else ""
        return f"{head}data: {data}\n\n".encode()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A response that is ready to be put into a vendor's form."""

    id: str
    """Random letters, for ids that vendors make anew for every response."""
    number: int
    """The number of the response in its script, for ids that must be the same when a run is resumed."""
    created: int
    model: str
    content: tuple[Block, ...]
    stop: str
    usage: Usage


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is an error."""

    status: int
    message: str = ""
    overflow: bool = False
    """Whether the request does not fit into the model's window."""
    window: int | None = None
    """The window of the model and the length of the request in tokens, for the error message."""
    size: int | None = None
    retry_after: float | None = None


class Wire(NamedTuple):
    """A vendor's API as functions without state."""

    dialect: Dialect
    call_prefix: str
    needed: tuple[str, ...]
    """The fields that a request must have besides a model."""
    request: Callable[[Body], ModelRequest]
    """Convert a request to Clew's own form."""
    whole: Callable[[Answer, Body], Any]
    events: Callable[[Answer, Body], list[Event]]
    error: Callable[[Problem], Any]
    stream_error: Callable[[Problem, Answer, Body, int], Event]
    """Make the error inside a stream, after this many events."""
    is_delta: Callable[[Event], bool]
    """Return whether an event carries content: words, or a part of a call."""


def calls_in(answer: Answer) -> list[ToolCall]:
    return [block for block in answer.content if isinstance(block, ToolCall)]


def stopped_early(stop: str) -> str | None:
    """Return why the model was cut off: `length`, `refusal` or empty. Understands every vendor's word for it."""
    return "length" if stop in _TOO_LONG else "refusal" if stop in _REFUSED else None
