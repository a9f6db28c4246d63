"""A run of an agent: await it for its result, or iterate it for what happens."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from clew.agent.events import Event, Question
from clew.errors import UsageError
from clew.log import Usage

__all__ = ["Emit", "Run", "RunResult"]

T = TypeVar("T")
Emit = Callable[[Event], None]
_END = object()


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    output: Any = None
    """The model's last words; None if it did not get that far."""
    thread_id: str
    status: Literal["done", "waiting", "interrupted"]
    reason: str = ""
    """Why it was interrupted: `max_turns`, `budget: …`."""
    questions: tuple[Question, ...] = ()
    """What it waits for."""
    usage: Usage = Usage()
    """Of the whole thread."""
    cost_usd: float | None = 0.0
    """Of the whole thread; None if a price is not known."""
    turns: int = 0
    resumed_from: int | None = None
    """The turn that the thread had reached when this run began; None for a new thread."""
    drift: Mapping[str, tuple[Any, Any]] = {}
    """What differs from the record, and was applied: what it was, and what it is."""
    waited: float = 0.0
    """Seconds that the run waited for its record to be durable."""


class Run(Generic[T]):
    """Lazy: nothing happens before it is awaited or iterated, and it runs once.

    One that is iterated and then dropped is cancelled: it stops at its next barrier, records that, and gives its lease back.
    """

    def __init__(self, work: Callable[[Emit], Awaitable[T]]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._used = False

    def __await__(self) -> Generator[Any, None, T]:
        if self._task is not None:
            return self._task.__await__()
        self._begin()
        return self._work(lambda event: None).__await__()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._task is None:
            self._start()
        event = await self._events.get()
        if event is _END:
            self._events.put_nowait(_END)
            await self
            raise StopAsyncIteration
        return event  # type: ignore[no-any-return]

    async def aclose(self) -> None:
        """Stop it, and return once all is on record."""
        if self._task is None:
            self._used = True
            return
        self._task.cancel()
        await asyncio.wait([self._task])

    def _begin(self) -> None:
        if self._used:
            raise UsageError("a run runs once, and this one was used before. Call agent.run again.")
        self._used = True

    def _start(self) -> None:
        """Run it beside whoever iterates; it does not hold on to the run, so that a run nobody has any more can be told."""
        self._begin()
        events, work = self._events, self._work

        async def run() -> T:
            try:
                return await work(events.put_nowait)
            finally:
                events.put_nowait(_END)

        loop = asyncio.get_running_loop()
        self._task = loop.create_task(run())
        self._task.add_done_callback(_retrieve)
        weakref.finalize(self, _cancel, loop, self._task).atexit = False


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    if not task.done() and not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Nobody may be left to ask how a run ended that was dropped."""
    if not task.cancelled():
        task.exception()
