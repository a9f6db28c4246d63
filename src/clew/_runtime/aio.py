"""Helpers for asyncio: work that finishes although its waiter is cancelled, worker threads, and a lock for each key."""

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
    """A task that `asyncio.run` waits for when it ends, instead of cancelling it.

    When `asyncio.run` ends, for example after a second Ctrl+C, it cancels every task and then runs the loop until all
    of them have ended. It calls `cancel` while the loop is not running, and that call is ignored here. Timeouts and
    cancel scopes inside the work call `cancel` while the loop runs, and that still works.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        return self.get_loop().is_running() and super().cancel(msg)


def settling(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start this coroutine as a task that finishes even if `asyncio.run` ends meanwhile."""
    return _Settling(work, loop=asyncio.get_running_loop())


async def settle(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Wait until this work has finished and return its result, even if the caller is cancelled meanwhile.

    If the caller is cancelled, once or more often, the first cancellation is raised after the work has finished; an
    error of the work becomes its `__cause__`. A coroutine is started with `settling`. A task or future can still be
    cancelled directly.
    """
    task = work if isinstance(work, asyncio.Future) else settling(work)
    cancelled = await _wait([task])
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel these tasks and return when all of them have ended. Their results and errors are dropped.

    If the caller is cancelled meanwhile, the tasks are cancelled again, so that a hanging cleanup can be interrupted. The
    cancellation of the caller is raised when all tasks have ended.
    """
    waited_for: list[asyncio.Future[Any]] = list(tasks)
    for task in waited_for:
        task.cancel()
    cancelled = await _wait(waited_for, cancel=True)
    for task in waited_for:
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs that this error was never retrieved
    if cancelled is not None:
        raise cancelled


async def _wait(tasks: list[asyncio.Future[Any]], *, cancel: bool = False) -> asyncio.CancelledError | None:
    """Wait until all of these tasks have ended. Returns the first cancellation of the caller during the wait, if any. With
    `cancel`, each cancellation of the caller also cancels the tasks."""
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
    """A piece of work for another thread, and the future on which its caller waits. Made by `new_job`.

    The worker stores the result in `outcome` or `error`; `settle` passes it to the caller. Cancelling the caller does not
    cancel the job: the caller's cancellation is raised when the job is settled.
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
    """Make a job that is awaited on this event loop. It is a function because an `__init__` would take twice as long
    (measured)."""
    job = Job(loop=loop)
    job.work = work
    job.error = job.outcome = None
    return job


def deliver(jobs: Iterable[Job]) -> None:
    """Settle finished jobs on the event loops of their callers. Called from a worker thread; wakes each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.get_loop(), []).append(job)
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(settle_all, mine)
        except RuntimeError:  # the loop was closed while the work ran, so nobody waits for the result
            continue


def settle_all(jobs: Iterable[Job]) -> None:
    """Pass each job's result or error to its caller. Called on the job's event loop. If the caller is gone, asyncio does not
    log the error as never retrieved."""
    for job in jobs:
        if job.error is None:
            job.set_result(job.outcome)
        else:
            job.set_exception(job.error)
            job.exception()


class WorkerPool:
    """A fixed number of threads that run jobs. Each thread owns one resource, for example a connection, made by `make`
    before its first job and closed by `close`."""

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
        """Finish the queued jobs, then end the threads and wait until they have ended."""
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
    """The tasks that one store has started on one event loop, so that `drain` can wait for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start this coroutine as a task."""
        return self._keep(asyncio.get_running_loop().create_task(work))

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this to its end and return its result. If the caller is cancelled, the cancellation is raised when the
        work has finished."""
        return await settle(self._keep(settling(work)))

    async def hear(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of this. If the caller is cancelled, the caller stops waiting at once and the work goes on
        in the background."""
        return await asyncio.shield(self.start(work))

    async def drain(self) -> None:
        """Wait until no task is left, including tasks that are started meanwhile."""
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
    """Run these coroutines concurrently and wait until all have ended. Returns their results in order, or raises the
    error of the first one in order that failed."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


class Locks:
    """A lock for each key: `async with locks[key]`. Stores hold it while they change an object, so that tasks of one process
    never compete for the same object on the server, where a conflict would cost a slow retry."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __getitem__(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
