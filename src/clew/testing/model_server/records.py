"""The requests that a model server has received, and a way to wait until it has received a number of model calls."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal

import msgspec

from clew.messages import Message
from clew.messages.dialects import Dialect
from clew.models.base import ModelRequest

__all__ = ["RecordedRequest", "Records", "without_secrets"]

_SECRET = re.compile(r"auth|key|token|cookie|secret|credential")
_PLAIN = frozenset({"idempotency-key"})


class RecordedRequest(msgspec.Struct, kw_only=True):
    """A request that a model server received: as the client sent it and, if it could be read as one, as a
    `ModelRequest`, Clew's own form."""

    method: str
    path: str
    headers: dict[str, str]
    """Header values by lower-case name. The values of keys and cookies are replaced."""
    body: Any
    """The JSON body, or None."""
    call: int = 0
    """The number of the model call among all model calls since the server started, from 1. It is 0 for other requests,
    such as a list of models or a count of tokens."""
    dialect: Dialect | None = None
    request: ModelRequest | None = None
    """The model request in Clew's own form. None if the request is not a model call or cannot be read."""
    outcome: Literal["", "answered", "refused", "failed", "hanging", "abandoned"] = ""
    """How the request ended. `answered`: it got its whole answer. `refused`: it was a bad request, or the test's script
    has no response left for it. `failed`: a fault stopped it. `hanging`: a fault keeps the answer from ending, and the
    client still waits. `abandoned`: the client hung up first. Empty while the request is being answered."""
    reason: str = ""
    """Why the request was refused."""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages that the request sends to the model, without the system prompt; empty if the request is not a
        model call."""
        return self.request.messages if self.request else ()


def without_secrets(headers: dict[str, str]) -> dict[str, str]:
    """Return these HTTP headers with the values of headers that hold keys, tokens or cookies replaced by `(not kept)`."""
    return {
        name: "(not kept)" if _SECRET.search(name) and name not in _PLAIN else value for name, value in headers.items()
    }


class Records:
    """All requests that a model server has received. Only the server's OS thread adds requests; any OS thread may read
    them."""

    def __init__(self, on_request: Callable[[RecordedRequest], None] | None = None) -> None:
        self._on_request = on_request
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Future[None]]] = []
        self.requests: list[RecordedRequest] = []
        self.calls = 0

    def add(self, record: RecordedRequest, *, is_call: bool) -> None:
        """Add a request, and call the server's function `on_request` with it if there is one. If `is_call` is set, the
        request is a model call: it gets the next number, counted from 1."""
        with self._lock:
            if is_call:
                self.calls += 1
                record.call = self.calls
            self.requests.append(record)
            if self._on_request is not None:
                self._on_request(record)
            due = [future for number, future in self._waiting if number <= self.calls]
            self._waiting = [waiting for waiting in self._waiting if waiting[0] > self.calls]
        for future in due:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def when(self, number: int) -> Future[None]:
        """Return a future that is done once at least `number` model calls have come since the model server started."""
        future: Future[None] = Future()
        with self._lock:
            if self.calls < number:
                self._waiting.append((number, future))
                return future
        future.set_result(None)
        return future
