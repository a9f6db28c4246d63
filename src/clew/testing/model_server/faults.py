"""What goes wrong with a call, on demand."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec

from clew.testing.model_server.wire import Problem

__all__ = ["Fault", "Faults"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """How a call of a `ModelServer` goes wrong. Several can be said at once where that makes sense."""

    status: int | None = None
    """Answer with this status, in the vendor's shape: 429, 500, 503, 529 …"""
    retry_after: float | None = None
    """Seconds, in the header Retry-After."""
    message: str = ""
    """The words of the error, in place of the vendor's."""
    overflow: bool = False
    """Say that the request is longer than the model's window, as each vendor does."""
    reset: bool = False
    """Drop the connection before the answer."""
    first_byte: float = 0
    """Seconds before the answer begins."""
    between: float = 0
    """Seconds between two events of a stream."""
    drop_after: int | None = None
    """Close the connection after this many events of a stream; after half the body, if it is none."""
    error_after: int | None = None
    """Send the error of `status`, or of `overflow`, after this many events of a stream, which has begun well."""
    malformed: bool = False
    """Send an event that is no JSON in place of the second one; a body that is none, if it is no stream."""
    hang: bool = False
    """Send all the words, and then nothing, until the client hangs up: the stream stays open and never ends. Where there
    is no stream, nothing is sent."""
    saying: str = ""
    """What was about to be said, for a fault in the midst of it that stands in a script in place of a response."""

    @property
    def problem(self) -> Problem | None:
        """The error that this fault answers with, if it does."""
        if self.status is None and not self.overflow and self.error_after is None:
            return None
        status = self.status or (400 if self.overflow else 500)
        return Problem(status=status, message=self.message, overflow=self.overflow, retry_after=self.retry_after)

    @property
    def stops(self) -> bool:
        """Whether the client gets nothing of an answer."""
        return self.reset or (self.problem is not None and self.error_after is None)

    @property
    def answers(self) -> bool:
        """Whether the client still gets a whole and true answer: the call was slow, and no more."""
        spoiled = self.reset or self.drop_after is not None or self.malformed or self.hang
        return self.problem is None and not spoiled


class Faults:
    """Which calls go wrong, and how. May be changed from any thread while the server runs."""

    def __init__(self, faults: Fault | Mapping[int, Fault] | None) -> None:
        self._lock = threading.Lock()
        self._always = faults if isinstance(faults, Fault) else None
        self._by_call = dict(faults) if isinstance(faults, Mapping) else {}
        self._next: list[Fault] = []

    def add(self, fault: Fault, calls: int | None) -> None:
        with self._lock:
            if calls is None:
                self._always = fault
            else:
                self._next += [fault] * calls

    def clear(self) -> None:
        with self._lock:
            self._always = None
            self._by_call.clear()
            self._next.clear()

    def take(self, number: int) -> Fault:
        """The fault of this call, counted from 1."""
        with self._lock:
            if number in self._by_call:
                return self._by_call[number]
            if self._next:
                return self._next.pop(0)
            return self._always or Fault()
