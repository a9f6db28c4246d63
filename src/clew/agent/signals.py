"""Signals: with `handle_signals`, SIGTERM stops a run as Ctrl+C does. The process ends once the run has recorded its
files and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any

from clew import advice
from clew.errors import UsageError

__all__ = ["EXIT_CODE", "by_id", "same_command", "stops_for", "stops_with_a_signal", "when_killed"]

EXIT_CODE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stops_for(
    thread_id: str, handle_signals: bool | Callable[[str], str], *, is_named: bool
) -> AbstractContextManager[None]:
    """Return a context manager for a run. The first SIGINT or SIGTERM inside of it stops the run; then the process
    prints how to go on with the thread, and exits. If `handle_signals` is False, the context manager does nothing, and
    signals act as usual.

    If `handle_signals` is a function, the printed text is what it returns for the thread's id. If it is True, the text
    depends on `is_named`, which says whether the program uses the same thread when it is run again. If so, the text
    says to run the program again. If not, the text is the Python call that resumes the thread by its id.
    """
    if handle_signals is False:
        return nullcontext()
    usual = same_command if is_named else by_id
    return stops_with_a_signal(thread_id, usual if handle_signals is True else handle_signals)


@contextmanager
def stops_with_a_signal(thread_id: str, resume: Callable[[str], str]) -> Iterator[None]:
    """Return a context manager for one run. A signal inside of it stops the run, and then ends the process.

    The first SIGINT or SIGTERM cancels the run. Once the run has recorded its end and its files, the process prints to
    stderr how to resume the thread, and exits with 130. `resume` is called with the thread's id and returns that text.
    What could not be recorded is printed too. A second signal ends the process at once, and prints what is not on
    record.
    """
    task = _running.enter()
    try:
        yield
    except asyncio.CancelledError as error:
        if not _running.stopped:
            raise
        missing = "; ".join(getattr(error, "__notes__", ()))
        said = f"Stopped, but {missing.rstrip('.')}." if missing else "Stopped; all is on record."
        print(f"{said} To go on: {resume(thread_id)}", file=sys.stderr, flush=True)
        if _running.others(task):
            raise  # the other runs have yet to record that they were stopped
        raise SystemExit(EXIT_CODE) from None
    finally:
        _running.leave(task)


def when_killed(standing: Callable[[], str]) -> None:
    """Set the function that says which work is not on record, for the run in the current asyncio task. It is called if
    the user sends a second signal while the first one is stopping the run, because the process then ends at once.
    `standing` returns the text to print; "" if all work of the run is on record."""
    _running.watch(asyncio.current_task(), standing)


def same_command(thread_id: str) -> str:
    """Return the advice, for the user of a program that was stopped, to run the same program again. It is for a program
    that names its thread, with an id or by its task, so that the second run resumes that thread. `thread_id` is not
    used: it is there because `by_id` takes it."""
    return advice.run_again()


def by_id(thread_id: str) -> str:
    """Return the Python call that resumes a thread by its id, as advice for the user of a program that was stopped. It is
    for a program that does not name its thread: run again, it would begin another one."""
    return advice.resume_in_program(thread_id)


class _StoppableRuns:
    """The runs in this process that a signal stops. The signal handlers are installed while there is at least one run."""

    def __init__(self) -> None:
        self.stopped = False
        self._tasks: dict[asyncio.Task[Any] | None, asyncio.AbstractEventLoop] = {}
        self._before: dict[int, Any] = {}
        self._standing: dict[asyncio.Task[Any] | None, Callable[[], str]] = {}

    def enter(self) -> asyncio.Task[Any] | None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "handle_signals=True works only in the main thread, where Python handles signals. Run the agent there with "
                "asyncio.run, or leave it out: Ctrl+C around clew.sync records what there is anyway."
            )
        if not self._tasks:
            self.stopped = False
            self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        task = asyncio.current_task()
        self._tasks[task] = asyncio.get_running_loop()
        return task

    def watch(self, task: asyncio.Task[Any] | None, standing: Callable[[], str]) -> None:
        if task in self._tasks:
            self._standing[task] = standing

    def others(self, task: asyncio.Task[Any] | None) -> bool:
        return bool(self._tasks.keys() - {task})

    def leave(self, task: asyncio.Task[Any] | None) -> None:
        self._tasks.pop(task, None)
        self._standing.pop(task, None)
        if not self._tasks:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            os.write(2, self._last_words().encode())
            os._exit(EXIT_CODE)
        self.stopped = True
        for task, loop in self._tasks.items():
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)

    def _last_words(self) -> str:
        """Return the text that is printed when a second signal ends the process. It says which work of the process's
        runs is not on record. A run for which that cannot be found out is left out."""
        missing: list[str] = []
        for task in self._tasks:
            with suppress(Exception):
                missing += filter(None, [self._standing[task]()])
        return f"Stopped at once; {'; '.join(missing) or 'how it ended is not on record'}.\n"


_running = _StoppableRuns()
