"""Faults that a test can ask of the model server: error statuses, cuts, delays, broken data."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec

from clew.testing.model_server.wire import Problem

__all__ = ["Fault", "Faults"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """How a call of a `ModelServer` goes wrong. Several fields can be combined where that makes sense."""

    status: int | None = None
    """Answer with this HTTP status and the vendor's error body: 429, 500, 503, 529 …"""
    retry_after: float | None = None
    """Seconds in the header `Retry-After`."""
    message: str = ""
    """The error message, instead of the vendor's."""
    overflow: bool = False
    """Answer that the request is longer than the model's window, in the vendor's words."""
    reset: bool = False
    """Drop the connection before the answer."""
    first_byte: float = 0
    """Seconds before the answer begins."""
    between: float = 0
    """Seconds between two events of a stream."""
    drop_after: int | None = None
    """Close the connection after this many events of a stream. Without a stream, close it after half of the body."""
    error_after: int | None = None
    """Send the error of `status` or `overflow` after this many events of a stream that began well."""
    malformed: bool = False
    """Replace the second event of a stream, or the body, by invalid JSON."""
    hang: bool = False
    """Send all words and then nothing until the client hangs up, so that the stream never ends. Without a stream, send
    nothing."""
    saying: str = ""
    """The text that was about to be said, for a fault inside a response that stands in a script."""

    @property
    def problem(self) -> Problem | None:
        """Return the error that this fault answers with, or None."""
        if self.status is None and not self.overflow and self.error_after is None:
            return None
        status = self.status or (400 if self.overflow else 500)
        return Problem(status=status, message=self.message, overflow=self.overflow, retry_after=self.retry_after)

    @property
    def stops(self) -> bool:
        """Return whether the client gets no answer at all."""
        return self.reset or (self.problem is not None and self.error_after is None)

    @property
    def answers(self) -> bool:
        """Return whether the client still gets a complete and correct answer, only slower."""
        spoiled = self.reset or self.drop_after is not None or self.malformed or self.hang
        return self.problem is None and not spoiled


class Faults:
    """Which calls go wrong, and how. Can be changed from any thread while the server runs."""

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
        """Return the fault for this call, counted from 1."""
        with self._lock:
            if number in self._by_call:
                return self._by_call[number]
            if self._next:
                return self._next.pop(0)
            return self._always or Fault()
