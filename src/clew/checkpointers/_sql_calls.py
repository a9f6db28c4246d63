"""Calls that go on though their caller is cancelled: writes settle first, reads are left to end unheard."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from clew.checkpointers._workers import Job, new_job

__all__ = ["Calls"]

T = TypeVar("T")


class Calls:
    """What is under way on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    async def settle(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this. Cancelling the caller does not abandon it: the cancellation goes on once it has settled."""
        job = new_job(None, self._loop)
        self.start(self._do(work, job))
        result: T = await job
        return result

    async def hear(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this. If the caller is cancelled, it ends unheard."""
        return await asyncio.shield(self.start(work))

    async def drain(self) -> None:
        """Wait for all that is under way, and for what that starts."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _do(self, work: Coroutine[Any, Any, Any], job: Job) -> None:
        try:
            job.outcome = await work
        except BaseException as error:  # noqa: BLE001 - handed to the waiter, whatever it is
            job.error = error
        job.settle()
