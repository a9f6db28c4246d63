"""How often each token may call: a bucket that fills at a steady rate, and a call takes one drop out of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["Rates"]


class Rates:
    """A bucket for each token. There are as many as there are tokens, so nothing has to be forgotten."""

    def __init__(self, rate: float | None, burst: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate or 0.0
        self._size = float(burst or max(1, math.ceil(self._rate)))
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, who: str) -> int:
        """0 if this call may go on; else the seconds, rounded up, after which one may."""
        if not self._rate:
            return 0
        now = self._now()
        level, since = self._buckets.get(who, (self._size, now))
        level = min(self._size, level + (now - since) * self._rate)
        if level < 1:
            self._buckets[who] = (level, now)
            return math.ceil((1 - level) / self._rate)
        self._buckets[who] = (level - 1, now)
        return 0
