"""The clock of a server, estimated with this machine's clock."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """The clock of a store's server: this machine's clock plus a fixed number of microseconds, 0 if both agree."""

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead

    def now(self) -> int:
        """Return the server's time in microseconds since 1970."""
        return time.time_ns() // 1000 + self._ahead
