"""What the loop puts on record, and how long it waits for that to be durable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clew.log import Call, Logged, MessageAdded, Spend, StatusChanged, StepIntent, StepOutcome, ToolOutcome
from clew.threads import Thread
from clew.tools.journal import Missing

__all__ = ["CallJournal", "Journal"]


class Journal:
    """A thread's log, as the loop writes to it. Barriers are durable when `record` returns; all else follows behind, in
    order: a response, an intent, an outcome, a step and a status are barriers. Whatever ends a piece of work says how long
    was worked, so that a budget of time outlives a crash."""

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.waited = 0.0
        """Seconds in which something waited for the record, those that waited at the same time counted once."""
        self._waiting = 0
        self._since = 0.0
        self._counted = time.monotonic()

    async def record(self, *entries: Logged) -> None:
        with self.wait():
            worked = [self._worked()] if any(map(_ends_work, entries)) else []
            await self.thread.append(*worked, *entries)

    def _worked(self) -> Spend:
        """The seconds since this was last said."""
        before, self._counted = self._counted, time.monotonic()
        return Spend(cost_usd=0.0, seconds=round(self._counted - before, 6))

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
        await self._journal.record(StepIntent(self._message, self._index, key))

    async def step_outcome(self, key: str, value: Any) -> None:
        await self._journal.record(StepOutcome(self._message, self._index, key, value))
        self._outcomes[key] = value

    def recorded(self, key: str) -> Any:
        if key in self._outcomes:
            return self._outcomes[key]
        return Missing.IN_DOUBT if key in self._begun else Missing.NOT_RECORDED
