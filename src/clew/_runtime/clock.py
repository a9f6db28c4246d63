"""The time of day, and how much time has passed. Everything that compares a stored time with the present asks here."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

import msgspec

__all__ = ["Moment", "now"]


def now() -> datetime:
    """Return the current time in UTC, by the clock of this machine.

    It asks `time.time` and not `datetime.now`, so that a test which replaces the functions of the module `time` moves
    leases and heads together with timeouts and pauses.
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
        """Return the seconds that have passed since this moment. If the two clocks give different numbers, return the
        larger one. Return infinity if one of the clocks shows an earlier time now than it did then."""
        wall, steady = time.time() - self.wall, time.monotonic() - self.steady
        return max(wall, steady) if min(wall, steady) >= 0 else math.inf
