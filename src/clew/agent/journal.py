"""What the loop puts on record, and how long it waits for that to be durable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from clew._aio import settle
from clew.errors import LeaseLost, Unavailable
from clew.log import Call, Logged, MessageAdded, Spend, StatusChanged, StepIntent, StepOutcome, ToolOutcome
from clew.threads import Thread
from clew.tools import Stopped
from clew.tools.journal import Missing

__all__ = ["CallJournal", "Journal"]

log = logging.getLogger("clew.agent")
E = TypeVar("E", bound=Logged)

PATIENCE = 20.0
"""Seconds that a store which is away is waited for: less than a lease lasts."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Journal:
    """A thread's log, as the loop writes to it: what is recorded, in the order it was said, and what waits for that.

    Whatever ends a piece of work says how long was worked, so that a budget of time outlives a crash.
    """

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.waited = 0.0
        """Seconds in which something waited for the record, those that waited at the same time counted once."""
        self._waiting = 0
        self._since = 0.0
        self._counted = time.monotonic()
        self._behind: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was started ends before the thread is given back, however often this is cancelled."""
        await settle(self.catch_up())

    async def record(self, *entries: Logged) -> None:
        """Barriers are durable when this returns, with all that was said before: a response, an intent, an outcome, a step,
        a status. All else follows behind."""
        with self.wait():
            await self._patiently(self.thread.append(*self._with_time(entries)))

    async def _patiently(self, writing: Awaitable[None]) -> None:
        """A store that is away for a moment, restarted say, is waited for: what was said is kept, and goes out then."""
        end, pause = time.monotonic() + PATIENCE, _FIRST_PAUSE
        while True:
            try:
                return await writing
            except Unavailable as error:
                if time.monotonic() + pause > end:
                    raise
                log.warning("thread %r: waiting for the store: %s", self.thread.thread_id, error)
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)
            writing = self.thread.flush()

    async def keep_lease(self) -> None:
        """Before an effect: a process that slept past its lease finds out first whether the thread is still its own."""
        lease = self.thread.head.lease
        if lease is not None and lease.expires_at <= datetime.now(UTC) and self._keeps:
            await self.thread.renew()

    def hold(self, *entries: Logged) -> None:
        """To be durable with what comes next, in one write: a response with the intents of its calls, an outcome with what
        else has ended."""
        self.thread.hold(*self._with_time(entries))

    async def write(self) -> bool:
        """Make all that was said so far durable, beside the work: an outcome is durable before the next effect, as that
        waits for its intent, and the model needs not wait for it. It begins at once, whatever else is about to run. Returns
        whether it is durable."""
        if self._keeps:
            try:
                await self._patiently(self.thread.flush())
            except (LeaseLost, Unavailable) as error:  # whoever waits for what is recorded next is told
                log.warning("thread %r: not yet durable: %s", self.thread.thread_id, error)
                return False
        return True

    def follow(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """These are still writing, beside the work: see to it that they end before the thread is given back."""
        self._behind |= set(tasks)
        self._behind = {task for task in self._behind if not task.done()}

    async def catch_up(self) -> None:
        """Let those that wrote beside the work say so, before anything new is told."""
        if self._behind:
            await asyncio.wait(self._behind)

    def count_since(self, moment: float) -> None:
        """From this moment, of `time.perf_counter`, up to now something waited for the record."""
        self.waited += time.perf_counter() - moment

    async def flush(self) -> None:
        """All that was said so far is durable when this returns."""
        if self._keeps:
            with self.wait():
                await self._patiently(self.thread.flush())

    def as_recorded(self, entry: E) -> E:
        """This entry as it would be on record, with what must not be there taken out."""
        (kept,) = self.thread.redacted([entry])
        return cast(E, kept)

    @property
    def _keeps(self) -> bool:
        """Whether anything is to be durable before the run ends."""
        return self.thread.durability != "exit"

    def _with_time(self, entries: tuple[Logged, ...]) -> tuple[Logged, ...]:
        """These, and if they end a piece of work the seconds since that was last said."""
        if not any(map(_ends_work, entries)):
            return entries
        before, self._counted = self._counted, time.monotonic()
        return (Spend(cost_usd=0.0, seconds=round(self._counted - before, 6)), *entries)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Around whatever is awaited only so that the record is durable."""
        if not self._waiting:
            self._since = time.perf_counter()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.waited += time.perf_counter() - self._since


def _ends_work(entry: Logged) -> bool:
    return isinstance(entry, ToolOutcome | StatusChanged) or (
        isinstance(entry, MessageAdded) and entry.usage is not None
    )


class CallJournal:
    """The steps of one call."""

    def __init__(self, journal: Journal, call: Call) -> None:
        self._journal = journal
        self._message, self._index = call.message, call.index
        self._outcomes: dict[str, Any] = dict(call.steps)
        self._begun = set(call.open_steps)

    async def step_intent(self, key: str) -> None:
        self._begun.add(key)
        await self._record(StepIntent(self._message, self._index, key))

    async def step_outcome(self, key: str, value: Any) -> None:
        self._outcomes[key] = value
        await self._record(StepOutcome(self._message, self._index, key, value))

    async def _record(self, entry: Logged) -> None:
        """If the record is out of reach, that is no error of the tool, which would be told to the model: the run stops."""
        try:
            await self._journal.record(entry)
        except (LeaseLost, Unavailable) as error:
            raise Stopped(error) from error

    def recorded(self, key: str) -> Any:
        if key in self._outcomes:
            return self._outcomes[key]
        return Missing.IN_DOUBT if key in self._begun else Missing.NOT_RECORDED
