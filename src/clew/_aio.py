"""Ways to wait on an event loop that hold however often the waiter is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["cancel_and_wait", "settle", "settling"]

T = TypeVar("T")


class _Settling(asyncio.Task[T]):
    """A task that the end of `asyncio.run` waits for instead of cancelling it.

    `asyncio.run` ends by cancelling every task and running the loop until all of them have ended, for example after a second
    Ctrl+C. It does so while the loop stands still. Timeouts and cancel scopes inside the work cancel the task while the loop
    runs, and must still be able to.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        return self.get_loop().is_running() and super().cancel(msg)


def settling(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start this in a task of its own that is run to its end although `asyncio.run` may end meanwhile."""
    return _Settling(work, loop=asyncio.get_running_loop())


async def settle(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Run this to its end and return its result, however often the caller is cancelled meanwhile.

    A cancellation is raised once the work has ended, whatever came of the work: an error of it is the cancellation's cause.
    A coroutine is started by `settling`. A task or future is waited for, and is cancelled by whoever cancels it.
    """
    task = work if isinstance(work, asyncio.Future) else settling(work)
    cancelled = await _wait([task])
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel these tasks and return once all of them have ended. Their results and errors are dropped.

    If the caller is cancelled meanwhile, the tasks are cancelled again, so that a cleanup that hangs can be broken off; the
    cancellation of the caller is raised once all of them have ended.
    """
    waited_for: list[asyncio.Future[Any]] = list(tasks)
    for task in waited_for:
        task.cancel()
    cancelled = await _wait(waited_for, cancel=True)
    for task in waited_for:
        if not task.cancelled():
            task.exception()  # else asyncio complains in the log of an error that nobody asked for
    if cancelled is not None:
        raise cancelled


async def _wait(tasks: list[asyncio.Future[Any]], *, cancel: bool = False) -> asyncio.CancelledError | None:
    """Wait until all of these have ended, and return the first cancellation of the caller in that time."""
    first: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            first = first or error
            for task in pending if cancel else ():
                task.cancel()
    return first
