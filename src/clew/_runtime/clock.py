"""The time of day, for everything that compares a stored time with the present."""

from __future__ import annotations

import time
from datetime import UTC, datetime

__all__ = ["now"]


def now() -> datetime:
    """Return the current time in UTC, by the clock of this machine.

    It asks `time.time` and not `datetime.now`, so that a test which replaces the functions of the module `time` moves
    leases and heads together with timeouts and pauses.
    """
    return datetime.fromtimestamp(time.time(), UTC)
