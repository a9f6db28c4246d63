"""Ways to wait on an event loop that hold however often the waiter is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakValueDictionary

__all__ = [
    "Calls",
    "Job",
    "Locks",
    "WorkerPool",
    "cancel_and_wait",
    "deliver",
    "new_job",
    "settle",
    "settle_all",
    "settling",
    "together",
]


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


class Calls:
    """What is under way on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._keep(self._loop.create_task(work))

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this. Cancelling the caller does not abandon it: the cancellation goes on once it has settled."""
        return await settle(self._keep(settling(work)))

    async def hear(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this. If the caller is cancelled, it ends unheard."""
        return await asyncio.shield(self.start(work))

    async def drain(self) -> None:
        """Wait for all that is under way, and for what that starts."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run these side by side; once all have ended, give their results or raise the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


class Locks:
    """A lock for each key, held while the object is changed from here: a process is never in its own way, and servers that
    make those who meet at one object wait for long are spared it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __getitem__(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
