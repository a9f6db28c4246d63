"""`AgentRun`: the events of a run as an async iterator. The run does not stop when the iterator is dropped."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from clew._runtime.aio import cancel_and_wait
from clew.compat.locus.events import LocusEvent
from clew.errors import UsageError

__all__ = ["AgentRun", "Tell"]

log = logging.getLogger("clew.compat.locus")

Tell = Callable[[LocusEvent], None]
Work = Callable[[Tell], Coroutine[Any, Any, None]]
Begin = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
_END = object()


class _Stream:
    """What an `AgentRun`, an iterator over the events of a run, shares with the run: the events that were not read yet,
    and the asyncio task in which the run works."""

    def __init__(self, work: Work, begin: Begin) -> None:
        self._work = work
        self._begin = begin
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None
        self.is_dropped = False
        self._readers = 0
        self._has_last = False
        """Whether the last event that anybody can read was taken: the `AgentRun` was dropped."""

    def start(self) -> asyncio.Task[None]:
        """Start the run, if it has not begun, and return the asyncio task in which it works."""
        if self.task is None:
            self.task = self._begin(self._work(self._tell))
            self.task.add_done_callback(self._ended)
        return self.task

    def _tell(self, event: LocusEvent) -> None:
        if not self._has_last and (self._readers or not self.is_dropped):
            self._events.put_nowait(event)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._events.put_nowait(_END)
        error = None if task.cancelled() else task.exception()
        if error is not None and self.is_dropped and not self._readers:
            log.error("a run that nobody reads has failed: %s", error)

    async def next_event(self, task: asyncio.Task[None]) -> LocusEvent:
        """Return the next event of the run that works in `task`. Raises `StopAsyncIteration` after the last one. If
        nobody can read a further event, because the `AgentRun` was dropped, return only when the run has ended. If the
        caller is cancelled, the run is cancelled too. If the run was cancelled in another way, raises `UsageError`."""
        self._readers += 1
        try:
            event = await self._events.get()
            self._has_last = self.is_dropped
            if self.is_dropped or event is _END:
                await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise UsageError(
                    "the run was stopped. What it did is on record: a run on the same thread goes on from there."
                ) from None
            await cancel_and_wait([task])
            raise
        finally:
            self._readers -= 1
        if event is _END:
            self._events.put_nowait(_END)
            raise StopAsyncIteration
        found: LocusEvent = event
        return found


class AgentRun(AsyncIterator[LocusEvent]):
    """One run of an agent, as an iterator over its events: `async for event in agent.run(…)`. The run begins when the
    first event is asked for, and goes on to its end.

        await agent.run("Plan a trip to Paris.", thread_id="user-42").__anext__()

    Here the first event is returned only when the whole run has ended and is on record: the iterator is not kept, so
    nobody can read the other events. If the iterator is kept, each event comes as it happens. A loop that is left by
    `break` does not stop the run, which then goes on in the background as long as the event loop does. `aclose` stops
    the run.
    """

    def __init__(self, work: Work, begin: Begin) -> None:
        self._stream = _Stream(work, begin)

    def __aiter__(self) -> AgentRun:
        return self

    def __anext__(self) -> Awaitable[LocusEvent]:
        # The coroutine does not hold this object. So the object is gone before the first event if the caller keeps
        # nothing but what this returns, and the stream knows that nobody will ask for a second event.
        return self._stream.next_event(self._stream.start())

    async def aclose(self) -> None:
        """Stop the run, and return once everything that it did is on record. A later run on the same thread can go on
        from there."""
        if self._stream.task is None:
            self._stream.is_dropped = True
        else:
            await cancel_and_wait([self._stream.task])

    def __del__(self) -> None:
        stream = self._stream
        if stream.task is None and not stream.is_dropped:
            warnings.warn(
                "a run was dropped unused, so nothing happened: iterate agent.run(…)", RuntimeWarning, stacklevel=2
            )
        stream.is_dropped = True
