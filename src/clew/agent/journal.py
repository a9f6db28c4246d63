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

import msgspec

from clew._runtime.aio import settle
from clew.agent.exchanges import JOINED, NO_END, OWN, SUPERSEDED, ExchangeSpan, Spent, Working, last_exchange, spent_on
from clew.errors import LeaseLost, ModelError, Unavailable
from clew.log import (
    Call,
    Logged,
    MessageAdded,
    ModelCallRefused,
    ModelCallStarted,
    Spend,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    ToolOutcome,
)
from clew.messages import Assistant, Message
from clew.threads import Thread
from clew.tools import Stopped
from clew.tools.context import Missing

__all__ = ["CallJournal", "Journal"]

log = logging.getLogger("clew.agent")
E = TypeVar("E", bound=Logged)

PATIENCE = 20.0
"""Seconds that a store which is away is waited for: less than a lease lasts."""
_LONGEST_REFUSAL = 300
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
        self._spent = Spent()
        self._lost = False
        """Whether the model was asked, and neither a response nor a refusal is on record yet."""
        self._exchange: Working | None = None

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
            await self._patiently(self.thread.append(*self._completed(entries)))

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

    @property
    def spent(self) -> Spent:
        """What was bought since this journal was opened, as far as it is on record; unknown if all there is is a request to
        the model that was lost."""
        return self._spent.unless_lost(self._lost)

    def begin_exchange(self, place: int, prompt_id: str, model: str) -> StateSet:
        """What is recorded right after a prompt, which stands at this place: from then on the work is for that prompt."""
        self._exchange = Working(place, OWN, model, prompt_id, Spent(), self._spent)
        return self._exchange.begun(self._spent, self.thread.checkpoint)

    def go_on_with(self, found: ExchangeSpan | None) -> None:
        """From now on the work is for this prompt, which is on record."""
        self._exchange = None if found is None else Working.on(found, self._spent)

    def note_work(self, model: str) -> None:
        """Say on record, with what comes next, that this run works on the prompt. So a stop without a word shows as one,
        whatever an earlier run said."""
        if self._exchange is not None and not self._exchange.is_noted:
            self._exchange = msgspec.structs.replace(
                self._exchange, provider=OWN, model=model, is_open=True, is_noted=True
            )
            self.hold(self._exchange.begun(self._spent, self.thread.checkpoint))

    def leave_exchange(self, *, done: bool) -> list[Logged]:
        """What is recorded when another prompt takes the place of the one that was worked on.

        Without an answer, but with responses of its own, the one that is left is answered together with the new prompt: the
        model has both before it, with the results of all calls. Delivered again, it must not be asked again, as its calls
        would be repeated. A prompt that the model has not responded to is interrupted, and may be asked again.
        """
        left, self._exchange = self._exchange, None
        if left is None or not left.is_open:
            return []
        if done:
            status, reason = "done", ""
        elif self._has_responses(left):
            status, reason = JOINED, ""
        else:
            status, reason = "interrupted", SUPERSEDED if left.is_noted else NO_END
        return [left.ended(self.thread.messages, status, reason, self._spent, self._lost)]

    def _has_responses(self, worked_on: Working) -> bool:
        last = last_exchange(self.thread.checkpoint)
        return last is not None and last.place == worked_on.place and any(map(_is_response, last.messages))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around a request to the model, whose start is on record. If the vendor refuses it for certain, that goes on record
        with what comes next, so that the request does not count as one that was lost and may have been paid for."""
        try:
            yield
        except ModelError as error:
            if error.is_free:
                self.hold(ModelCallRefused(error.reason[:_LONGEST_REFUSAL]))
            raise

    async def ask_again(self, model: str) -> None:
        """Record the start of a further request, unless one is on record already that has not ended."""
        if not self._lost:
            await self.record(ModelCallStarted(model))

    def _redacted_reason(self, reason: str) -> str:
        return self.as_recorded(StatusChanged("interrupted", reason)).reason

    def hold(self, *entries: Logged) -> None:
        """To be durable with what comes next, in one write: a response with the intents of its calls, an outcome with what
        else has ended."""
        self.thread.hold(*self._completed(entries))

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

    def _completed(self, entries: tuple[Logged, ...]) -> tuple[Logged, ...]:
        """These, with the seconds of the work that they end, and with the end of the exchange that their status ends."""
        timed = self._with_time(entries)
        for entry in timed:
            self._count(entry)
        ends = [entry for entry in entries if isinstance(entry, StatusChanged) and entry.status != "running"]
        worked_on = self._exchange
        if not ends or worked_on is None or (worked_on.is_done and not worked_on.is_open):
            return timed
        reason = self._redacted_reason(ends[-1].reason)
        end = worked_on.ended(self.thread.messages, ends[-1].status, reason, self._spent, self._lost)
        self._exchange = msgspec.structs.replace(worked_on, is_open=False, is_noted=False)
        return (*timed, end)

    def _count(self, entry: Logged) -> None:
        spent = spent_on(entry)
        if spent is not None:
            self._spent = self._spent.plus(spent)
        if isinstance(entry, ModelCallStarted):
            self._lost = True
        elif isinstance(entry, ModelCallRefused) or (
            isinstance(entry, MessageAdded) and isinstance(entry.message, Assistant)
        ):
            self._lost = False

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


def _is_response(message: Message) -> bool:
    return type(message) is Assistant


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
