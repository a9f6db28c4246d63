"""Signals: with `handle_signals`, SIGTERM does as Ctrl+C does, and both end the process once all is on record."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from clew.errors import UsageError

__all__ = ["EXIT_CODE", "by_id", "same_command", "stops_with_a_signal"]

EXIT_CODE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stops_with_a_signal(thread_id: str, resume: Callable[[str], str]) -> Iterator[None]:
    """Around a run: the first SIGINT or SIGTERM cancels it, and once it has recorded that, the command that resumes it is
    printed to stderr and the process exits with 130. A second signal ends the process at once."""
    task = _running.enter()
    try:
        yield
    except asyncio.CancelledError:
        if not _running.stopped:
            raise
        print(f"Stopped; all is on record. To go on: {resume(thread_id)}", file=sys.stderr, flush=True)
        if _running.others(task):
            raise  # those have still to record that they were stopped
        raise SystemExit(EXIT_CODE) from None
    finally:
        _running.leave(task)


def same_command(thread_id: str) -> str:
    """How a program that names its thread is resumed: by running it again."""
    return shlex.join(sys.orig_argv)


def by_id(thread_id: str) -> str:
    """How a thread is resumed that nobody named."""
    return f"agent.resume(thread_id={thread_id!r})"


class _Running:
    """The runs that a signal stops. The handlers stand while there is one."""

    def __init__(self) -> None:
        self.stopped = False
        self._tasks: dict[asyncio.Task[Any] | None, asyncio.AbstractEventLoop] = {}
        self._before: dict[int, Any] = {}

    def enter(self) -> asyncio.Task[Any] | None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "handle_signals=True works in the main thread alone, as signals do. Run the agent there with asyncio.run, "
                "or leave it out: Ctrl+C around clew.sync records what there is anyway."
            )
        if not self._tasks:
            self.stopped = False
            self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        task = asyncio.current_task()
        self._tasks[task] = asyncio.get_running_loop()
        return task

    def others(self, task: asyncio.Task[Any] | None) -> bool:
        return bool(self._tasks.keys() - {task})

    def leave(self, task: asyncio.Task[Any] | None) -> None:
        self._tasks.pop(task, None)
        if not self._tasks:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            os._exit(EXIT_CODE)
        self.stopped = True
        for task, loop in self._tasks.items():
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)


_running = _Running()
