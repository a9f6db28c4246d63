"""Faults that a test can ask the model server for, so that its answers go wrong: error statuses, broken connections,
delays and broken data."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import msgspec

from clew.testing.model_server.wire import Problem

__all__ = ["Fault", "Faults"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong with a model call that a client makes to a `ModelServer`. Several fields can be combined where
    that makes sense. By default nothing goes wrong."""

    status: int | None = None
    """Answer with this HTTP status and the vendor's error body: 429, 500, 503, 529 …"""
    retry_after: float | None = None
    """Seconds to send in the header `Retry-After`."""
    message: str = ""
    """The error message to send, instead of the vendor's usual one."""
    overflow: bool = False
    """Answer with the vendor's error for a request that is longer than the model's context window."""
    reset: bool = False
    """Reset the connection before anything is sent."""
    first_byte: float = 0
    """Seconds before the answer begins."""
    between: float = 0
    """Seconds between two events of a stream."""
    drop_after: int | None = None
    """Close the connection after exactly this many events of a stream. If the answer is not a stream, close it after
    half of the body."""
    error_after: int | None = None
    """Send exactly this many events of a stream without problems, and then an error. It is the error that `status` or
    `overflow` asks for."""
    malformed: bool = False
    """Replace the second event of a stream by invalid JSON; without a stream, replace the whole body."""
    hang: bool = False
    """Send all content of a stream but not its end, and wait until the client hangs up. Without a stream, send nothing.
    """
    saying: str = ""
    """The text of the response that goes wrong. It is used if this fault stands in a script in place of a response."""

    @property
    def problem(self) -> Problem | None:
        """The error response that the client gets, or None if this fault sends no error response."""
        if self.status is None and not self.overflow and self.error_after is None:
            return None
        status = self.status or (400 if self.overflow else 500)
        return Problem(status=status, message=self.message, overflow=self.overflow, retry_after=self.retry_after)

    @property
    def stops(self) -> bool:
        """Whether the client gets an error or a reset connection, and nothing of the response."""
        return self.reset or (self.problem is not None and self.error_after is None)

    @property
    def answers(self) -> bool:
        """Whether the client still gets a complete and correct response in spite of this fault, even if it comes
        slowly."""
        spoiled = self.reset or self.drop_after is not None or self.malformed or self.hang
        return self.problem is None and not spoiled


class Faults:
    """Decides which of the model calls to a model server go wrong, and how. Can be changed from any OS thread while the
    server runs."""

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
        """Return the fault for the model call with this number, counted from 1 since the server started. If nothing is
        to go wrong, return a `Fault` without any effect.

        A fault that was set for this number comes first, then one that was set for the next calls, then one for all
        calls. If a fault that was set for the next calls is returned, it is used up for one of these calls.
        """
        with self._lock:
            if number in self._by_call:
                return self._by_call[number]
            if self._next:
                return self._next.pop(0)
            return self._always or Fault()
