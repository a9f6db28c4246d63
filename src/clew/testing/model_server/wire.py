"""What the vendors' APIs have in common as the model server speaks them. `Answer` and `Problem` are a response and an
error that are not yet in a vendor's form; `Wire` is the set of functions that put them into a vendor's form."""

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

_TOO_LONG = frozenset({"max_tokens", "length", "max_output_tokens", "model_context_window_exceeded", "MAX_TOKENS"})
_REFUSED = frozenset({"refusal", "content_filter", "SAFETY", "PROHIBITED_CONTENT"})


class Event(NamedTuple):
    """One server-sent event of a stream. If `name` is None, only the data is sent."""

    name: str | None
    data: Any

    def encoded(self) -> bytes:
        data = self.data if isinstance(self.data, str) else msgspec.json.encode(self.data).decode()
        head = f"event: {self.name}\n" if self.name else ""
        return f"{head}data: {data}\n\n".encode()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the model server answers to one request, before it is written in a vendor's form: the content of the
    script's response, and the ids, the model's name, the stop reason and the token counts to send with it."""

    id: str
    """Random letters from which the ids are made that a vendor makes anew for every response."""
    number: int
    """The index of the response in the test's script, from 0. Ids that must be the same when a run is resumed are made
    from it."""
    created: int
    model: str
    content: tuple[Block, ...]
    stop: str
    usage: Usage


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error with which the model server answers a request, before the error is written in a vendor's form."""

    status: int
    message: str = ""
    overflow: bool = False
    """Whether the error is that the request is longer than the model's context window."""
    window: int | None = None
    """The model's context window in tokens, for the error message. The message also gives `size`, the length of the
    request in tokens."""
    size: int | None = None
    retry_after: float | None = None


class Wire(NamedTuple):
    """A vendor's API as the model server speaks it: functions that read requests, and that write responses, streams and
    errors."""

    dialect: Dialect
    call_prefix: str
    needed: tuple[str, ...]
    """The names of the fields that a request's body must have besides `model`."""
    request: Callable[[Body], ModelRequest]
    """Converts the body of a request to Clew's own form."""
    whole: Callable[[Answer, Body], Any]
    events: Callable[[Answer, Body], list[Event]]
    error: Callable[[Problem], Any]
    stream_error: Callable[[Problem, Answer, Body, int], Event]
    """Makes the event for an error in the middle of a stream. Its arguments, in order: the error, the answer that was
    being sent, the body of the request, and how many events were sent before the error."""
    is_delta: Callable[[Event], bool]
    """Tells whether an event of a stream carries content: a few words of a text, or a few characters of a tool call's
    arguments."""


def calls_in(answer: Answer) -> list[ToolCall]:
    return [block for block in answer.content if isinstance(block, ToolCall)]


def stopped_early(stop: str) -> str | None:
    """Return why a model's response was cut off: `length` (it reached its limit of tokens) or `refusal` (the model or a
    filter refused); None if it was not cut off. `stop` is the response's stop reason in the word of any vendor."""
    return "length" if stop in _TOO_LONG else "refusal" if stop in _REFUSED else None
