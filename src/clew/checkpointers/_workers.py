"""Blocking work on threads of a store's own, awaited from an event loop.

Measured on two cores beside `asyncio.to_thread`: a hop here and back takes about half as long, because there is one
queue, one wake-up each way, and no context to copy. All results of a batch come back in a single wake-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["Job", "WorkerPool", "deliver", "new_job", "settle_all"]

T = TypeVar("T")


class Job(asyncio.Future[Any]):
    """One piece of work, and the future of whoever waits for it. `new_job` makes them.

    Cancelling the waiter does not cancel it: the waiter learns of its cancellation once the work has settled.
    """

    __slots__ = ("error", "outcome", "work")
    error: BaseException | None
    outcome: Any
    work: Any

    def cancel(self, msg: Any | None = None) -> bool:
        return False

    def settle(self) -> None:
        settle_all((self,))


def new_job(work: Any, loop: asyncio.AbstractEventLoop) -> Job:
    """A job to be awaited on this loop. Measured: an `__init__` would double what it takes to make one."""
    job = Job(loop=loop)
    job.work = work
    job.error = job.outcome = None
    return job


def deliver(jobs: Iterable[Job]) -> None:
    """Hand results back to the loops that wait for them, with one wake-up a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.get_loop(), []).append(job)
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(settle_all, mine)
        except RuntimeError:  # the loop was closed while the work ran: nobody is left to tell
            continue


def settle_all(jobs: Iterable[Job]) -> None:
    """Tell whoever waits what came of it. An error that nobody is left to hear of is no news for the log."""
    for job in jobs:
        if job.error is None:
            job.set_result(job.outcome)
        else:
            job.set_exception(job.error)
            job.exception()


class WorkerPool:
    """A few threads that each own a resource (a connection, say) and run jobs with it."""

    def __init__(self, name: str, size: int, make: Callable[[], Any], close: Callable[[Any], None]) -> None:
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._make = make
        self._close = close
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{n}", daemon=True) for n in range(size)]
        for thread in self._threads:
            thread.start()

    async def run(self, work: Callable[[Any], T], loop: asyncio.AbstractEventLoop) -> T:
        job = new_job(work, loop)
        self._queue.put(job)
        result: T = await job
        return result

    def stop(self) -> None:
        """End the threads after the jobs already queued, and wait for them."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        resource: Any = None
        while (job := self._queue.get()) is not None:
            try:
                if resource is None:
                    resource = self._make()
                job.outcome = job.work(resource)
            except BaseException as error:  # noqa: BLE001 - handed to the waiter, whatever it is
                job.error = error
            deliver((job,))
            del job
        if resource is not None:
            self._close(resource)
