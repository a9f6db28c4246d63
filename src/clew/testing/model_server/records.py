"""The requests that a model server received, and a way to wait for the next."""

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
    """A request as it was received, and as Clew reads it."""

    method: str
    path: str
    headers: dict[str, str]
    """Header values by lower-case name. Keys and cookies are left out."""
    body: Any
    """The JSON body, or None."""
    call: int = 0
    """The number of the model call, from 1. It is 0 for other requests, such as a list of models or a count of tokens.
    """
    dialect: Dialect | None = None
    request: ModelRequest | None = None
    """The model call in Clew's own form. None if the request is not a model call or cannot be read."""
    outcome: Literal["", "answered", "refused", "failed", "hanging", "abandoned"] = ""
    """How the request ended. answered: completely. refused: a bad request, or past the end of the script. failed: by a
    fault. hanging: by a fault, all words are sent and the client still waits. abandoned: the client hung up first.
    Empty while the request is being answered."""
    reason: str = ""
    """Why the request was refused."""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages without the system prompt."""
        return self.request.messages if self.request else ()


def without_secrets(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers without keys and cookies."""
    return {
        name: "(not kept)" if _SECRET.search(name) and name not in _PLAIN else value for name, value in headers.items()
    }


class Records:
    """All requests. Written by the server's thread and readable from any."""

    def __init__(self, on_request: Callable[[RecordedRequest], None] | None = None) -> None:
        self._on_request = on_request
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Future[None]]] = []
        self.requests: list[RecordedRequest] = []
        self.calls = 0

    def add(self, record: RecordedRequest, *, is_call: bool) -> None:
        """Keep a request. A model call gets its number."""
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
        """Return a future that is done after this many calls."""
        future: Future[None] = Future()
        with self._lock:
            if self.calls < number:
                self._waiting.append((number, future))
                return future
        future.set_result(None)
        return future
