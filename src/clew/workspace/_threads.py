"""Blocking work of one snapshot, on a few threads that all stop if one of them fails or the caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

__all__ = ["Stopped", "Threads"]

T = TypeVar("T")
_TICK = 0.1


class Stopped(Exception):
    """What a thread ends with when it is told to stop."""


class Threads:
    """`stop` is set when work is to end early. Whoever waits for something else is let go by `let_go`."""

    def __init__(self, count: int) -> None:
        self.stop = threading.Event()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="clew-workspace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()  # at once: nothing is under way any more

    def go_on(self) -> None:
        """Called by work now and then; ends it if it should stop."""
        if self.stop.is_set():
            raise Stopped

    async def run(self, work: Callable[[], T]) -> T:
        return (await self.run_all([work]))[0]

    async def run_all(
        self,
        works: Sequence[Callable[[], T]],
        *,
        let_go: Callable[[], object] = lambda: None,
        tick: Callable[[], object] | None = None,
    ) -> list[T]:
        """Do all of this at once and wait for it, calling `tick` meanwhile. After a failure or a cancellation all of it
        is told to stop, and has ended when that is raised."""
        loop = asyncio.get_running_loop()
        self.stop.clear()
        jobs = [loop.run_in_executor(self._pool, work) for work in works]
        pending = set(jobs)
        failure: BaseException | None = None
        while pending:
            problem: BaseException | None = None
            try:
                done, pending = await asyncio.wait(
                    pending, timeout=_TICK if tick else None, return_when=asyncio.FIRST_COMPLETED
                )
                # The exception of every job is asked for: asyncio complains in the log of one that nobody has seen.
                problem = next(iter([error for job in done if (error := job.exception()) is not None]), None)
                if tick is not None and failure is None and problem is None:
                    tick()
            except BaseException as error:  # noqa: BLE001 - raised below, once nothing is under way any more
                problem = error
            if problem is not None and failure is None:
                failure = problem
                self.stop.set()
                let_go()
        if failure is not None:
            raise failure
        return [job.result() for job in jobs]
