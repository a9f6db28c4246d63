"""Calls that go on though their caller is cancelled: writes settle first, reads are left to end unheard."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from clew._aio import settle, settling

__all__ = ["Calls"]

T = TypeVar("T")


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
