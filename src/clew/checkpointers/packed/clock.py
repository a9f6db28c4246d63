"""Estimates the clock of a store's server from this machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from clew.checkpointers.heads import grace_micros

__all__ = ["Clock", "stopwatch"]


class Clock:
    """The clock of a store's server, estimated from this machine's clock. `ahead` is by how many microseconds the
    server's clock is ahead of this machine's, negative if it is behind."""

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead

    def now(self) -> int:
        """Return the server's current time in microseconds since 1970."""
        return time.time_ns() // 1000 + self._ahead

    def before(self, time: timedelta) -> int:
        """Return what the server's clock showed at the moment that is `time` ago, in microseconds since 1970."""
        return self.now() - grace_micros(time)


def stopwatch() -> Callable[[], float]:
    """Return a function that returns how many seconds have passed since `stopwatch` was called. It returns the longer
    of the times that two clocks have measured: the steady clock stands still while the machine is suspended, and the
    time of day may be set."""
    steady, wall = time.monotonic(), time.time()
    return lambda: max(time.monotonic() - steady, abs(time.time() - wall))
