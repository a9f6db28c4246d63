"""What a server was asked: every request, and a way to wait for the next."""

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
    """A request as it came, and as Clew reads it."""

    method: str
    path: str
    headers: dict[str, str]
    """By their names in small letters; keys and cookies are not kept."""
    body: Any
    """The JSON value; None if there was none."""
    call: int = 0
    """The number of the model call, from 1 on; 0 for a request that is none: the list of models, a count of tokens."""
    dialect: Dialect | None = None
    request: ModelRequest | None = None
    """What was asked, in Clew's own words; None for what is no model call, or cannot be read."""
    outcome: Literal["", "answered", "refused", "failed", "hanging", "abandoned"] = ""
    """answered: whole. refused: a bad request, or past the script's end. failed: by a fault. hanging: by a fault, all its
    words are sent and the client still waits. abandoned: the client hung up first. Empty while it is on the way."""
    reason: str = ""
    """Why it was refused."""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages, without the instructions."""
        return self.request.messages if self.request else ()


def without_secrets(headers: dict[str, str]) -> dict[str, str]:
    """Whatever may be one is none of a test's business."""
    return {
        name: "(not kept)" if _SECRET.search(name) and name not in _PLAIN else value for name, value in headers.items()
    }


class Records:
    """Written by the server's thread, read by any."""

    def __init__(self, on_request: Callable[[RecordedRequest], None] | None = None) -> None:
        self._on_request = on_request
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Future[None]]] = []
        self.requests: list[RecordedRequest] = []
        self.calls = 0

    def add(self, record: RecordedRequest, *, is_call: bool) -> None:
        """Keep it; a model call gets its number."""
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
        """Done once there have been that many calls."""
        future: Future[None] = Future()
        with self._lock:
            if self.calls < number:
                self._waiting.append((number, future))
                return future
        future.set_result(None)
        return future
