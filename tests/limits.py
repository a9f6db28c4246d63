"""Limits that a busy machine does not reach: of processor time, and of patience."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["PATIENCE", "processor_time"]

PATIENCE = 300.0
"""Seconds to wait for what should happen soon. No test passes or fails by how soon it does, so this is long: a machine
that runs other work has held up a process that takes one second for more than sixty."""


@contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Fail if the block takes more processor time than this, and end it then: for what would otherwise run for years."""

    def end(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"this took more than {seconds:.0f} s of processor time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
