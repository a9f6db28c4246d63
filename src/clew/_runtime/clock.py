"""Tells the time of day, and measures how much time has passed. Everything in Clew that compares a stored time with the
present time uses this module."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

import msgspec

__all__ = ["Moment", "now"]


def now() -> datetime:
    """Return the current time in UTC, by the clock of this machine.

    Uses `time.time` and not `datetime.now`, because tests replace the functions of the module `time`. So a test changes
    the time for leases and heads together with that for timeouts and pauses.
    """
    return datetime.fromtimestamp(time.time(), UTC)


class Moment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A moment as two clocks showed it: `wall`, the time of day, which a user or a time server may set, and `steady`,
    which is never set but may stand still while the machine sleeps. It means nothing after a restart of the machine."""

    wall: float
    steady: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.monotonic())

    def age(self) -> float:
        """Return how many seconds have passed since this moment, which two clocks measure: the time of day and a steady
        clock. If they disagree, return the larger number, because one of them may have stood still.

        Return infinity if one of the clocks shows an earlier time now than it did then. That clock was set back or
        started anew, so it cannot be known how much time has passed.
        """
        wall, steady = time.time() - self.wall, time.monotonic() - self.steady
        return max(wall, steady) if min(wall, steady) >= 0 else math.inf
