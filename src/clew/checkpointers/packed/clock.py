"""The clock of a store that has one of its own."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """The store's clock, as far as it differs from this machine's by more than a moment."""

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead

    def now(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000 + self._ahead
