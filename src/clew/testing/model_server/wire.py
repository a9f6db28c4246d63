"""What the three APIs have in common: an answer before it is put in a vendor's words, and what a vendor's module gives."""

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
    """A response that is ready to be put in a vendor's words."""

    id: str
    """Random letters, for ids that vendors make anew for every response."""
    number: int
    """Of the response in its script, for ids that are to be the same when a run is resumed."""
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
    """The request does not fit the model's window."""
    window: int | None = None
    """What the model takes, in tokens, and what it was given, for the words of that error."""
    size: int | None = None
    retry_after: float | None = None


class Wire(NamedTuple):
    """A vendor's API, as functions without state."""

    dialect: Dialect
    call_prefix: str
    needed: tuple[str, ...]
    """What a request must have, beside a model."""
    request: Callable[[Body], ModelRequest]
    """What a request asks, in Clew's own words."""
    whole: Callable[[Answer, Body], Any]
    events: Callable[[Answer, Body], list[Event]]
    error: Callable[[Problem], Any]
    stream_error: Callable[[Problem, Answer, Body, int], Event]
    """The same error in a stream, after that many events of it."""
    is_delta: Callable[[Event], bool]
    """Whether an event brings something of the content: words, or a part of a call."""


def calls_in(answer: Answer) -> list[ToolCall]:
    return [block for block in answer.content if isinstance(block, ToolCall)]


def stopped_early(stop: str) -> str | None:
    """Whether this vendor's or another's word means that the model was cut off: `length`, `refusal` or not at all."""
    return "length" if stop in _TOO_LONG else "refusal" if stop in _REFUSED else None
