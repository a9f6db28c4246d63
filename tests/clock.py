"""A clock that tests move on: what would take an hour takes no time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self
from unittest.mock import patch

from tests.limits import PATIENCE

__all__ = ["Clock"]


class Clock:
    """The clocks of this process, ahead of the real ones by as much as the test has moved them.

    While it is entered, everything that asks the module `time` sees the moved time, and so do event loops: timeouts and
    pauses that are due by then end in the next round of the loop. Other processes and file systems keep the real time.
    """

    def __init__(self) -> None:
        self._ahead = 0
        self._real = (time.time_ns, time.monotonic_ns, time.perf_counter_ns)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for name, real in zip(("time", "monotonic", "perf_counter"), self._real, strict=True):
            self._stack.enter_context(patch.object(time, f"{name}_ns", partial(self._moved, real)))
            self._stack.enter_context(patch.object(time, name, partial(self._moved_seconds, real)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def advance(self, seconds: float) -> None:
        """Move all clocks on. Called on the thread of an event loop, since a loop that waits on another thread would go on
        to wait."""
        self._ahead += round(seconds * 1e9)

    async def advance_when(self, condition: Callable[[], object], seconds: float) -> None:
        """Move all clocks on once this condition holds: a thread or another process has come so far."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.005)
        self.advance(seconds)

    def _moved(self, real: Callable[[], int]) -> int:
        return real() + self._ahead

    def _moved_seconds(self, real: Callable[[], int]) -> float:
        return (real() + self._ahead) / 1e9
