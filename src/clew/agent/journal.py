"""The journal of a run: writes entries to the thread's log, and counts time, spend and waits for the store."""

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
"""How many seconds to wait for a store that cannot be reached. Less than a lease lasts."""
_LONGEST_REFUSAL = 300
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Journal:
    """Writes the log of a thread for a run. Entries are recorded in the order in which they are given.

    Entries that end a piece of work are recorded together with the seconds worked, so that a time budget survives a crash.
    """

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.waited = 0.0
        """Seconds that the run spent waiting for the record to be durable. Simultaneous waits are counted once."""
        self._waiting = 0
        self._since = 0.0
        self._counted = time.monotonic()
        self._behind: set[asyncio.Task[Any]] = set()
        self._spent = Spent()
        self._lost = False
        """True while the model was asked and neither a response nor a refusal is on record."""
        self._exchange: Working | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all background writes, so that they end before the thread is released, even if this is cancelled."""
        await settle(self.catch_up())

    async def record(self, *entries: Logged) -> None:
        """Record these entries. If one of them is a barrier, they and all earlier entries are durable on return.

        Barriers are responses, intents, outcomes, steps and statuses, for example. Other entries are written in the
        background. A thread's durability can demand more (`sync`) or less (`exit`).
        """
        with self.wait():
            await self._patiently(self.thread.append(*self._completed(entries)))

    async def _patiently(self, writing: Awaitable[None]) -> None:
        """Await this write, and retry for up to `PATIENCE` seconds while the store is unavailable, e.g. restarting.

        The entries are kept meanwhile, and are sent by the retry.
        """
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
        """Renew the lease if it has expired. Raises `LeaseLost` if another process has taken over the thread.

        Call this before an effect: the process may have slept past its lease.
        """
        lease = self.thread.head.lease
        if lease is not None and lease.expires_at <= datetime.now(UTC) and self._keeps:
            await self.thread.renew()

    @property
    def spent(self) -> Spent:
        """What was spent since this journal was opened, as far as it is on record.

        Unknown if there was no response, only a model call that was lost.
        """
        return self._spent.unless_lost(self._lost)

    def begin_exchange(self, place: int, prompt_id: str, model: str) -> StateSet:
        """Begin work on a new prompt at this index of the history.

        Returns the entry that must be recorded right after the prompt.
        """
        self._exchange = Working(place, OWN, model, prompt_id, Spent(), self._spent)
        return self._exchange.begun(self._spent, self.thread.checkpoint)

    def go_on_with(self, found: ExchangeSpan | None) -> None:
        """Continue work on an exchange that is on record, or on none."""
        self._exchange = None if found is None else Working.on(found, self._spent)

    def note_work(self, model: str) -> None:
        """Hold an entry which says that this run works on the exchange, unless that is recorded already.

        If the run is then killed, the exchange shows as interrupted, whatever status an earlier run recorded.
        """
        if self._exchange is not None and not self._exchange.is_noted:
            self._exchange = msgspec.structs.replace(
                self._exchange, provider=OWN, model=model, is_open=True, is_noted=True
            )
            self.hold(self._exchange.begun(self._spent, self.thread.checkpoint))

    def leave_exchange(self, *, done: bool) -> list[Logged]:
        """Return the entries that end the current exchange when another prompt takes its place. `done`: it was answered.

        If it was not answered but has responses, it is recorded as answered together with the new prompt: the model sees
        both prompts and the results of all calls. The same prompt delivered again must then not be asked again, because
        its calls would be repeated. A prompt without any response is recorded as interrupted, and may be asked again.
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
        """Wrap a request to the model whose start is on record.

        If the vendor refused the request for certain, the refusal is held for the next write. The request then does not
        count as lost, and so not as possibly charged.
        """
        try:
            yield
        except ModelError as error:
            if error.is_free:
                self.hold(ModelCallRefused(error.reason[:_LONGEST_REFUSAL]))
            raise

    async def ask_again(self, model: str) -> None:
        """Record the start of another model call, unless the last recorded call is still without response or refusal."""
        if not self._lost:
            await self.record(ModelCallStarted(model))

    def _redacted_reason(self, reason: str) -> str:
        return self.as_recorded(StatusChanged("interrupted", reason)).reason

    def hold(self, *entries: Logged) -> None:
        """Record these entries, and make them durable in one write with the entries that follow.

        A response is held for the intents of its calls, for example.
        """
        self.thread.hold(*self._completed(entries))

    async def write(self) -> bool:
        """Make everything recorded so far durable, while other work goes on.

        Returns False if the store is unavailable or the lease is lost.

        The model need not wait for the outcome of a call. The next effect does, because it waits for its own intent,
        which is written after the outcome. The write begins at once, whatever else is about to run. With durability
        `exit`, nothing is written and True is returned.
        """
        if self._keeps:
            try:
                await self._patiently(self.thread.flush())
            except (LeaseLost, Unavailable) as error:  # raised again by the next write that is waited for
                log.warning("thread %r: not yet durable: %s", self.thread.thread_id, error)
                return False
        return True

    def follow(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Register tasks that still write in the background. The journal waits for them before the thread is released."""
        self._behind |= set(tasks)
        self._behind = {task for task in self._behind if not task.done()}

    async def catch_up(self) -> None:
        """Wait for the background writes, so that their events are emitted before any new ones."""
        if self._behind:
            await asyncio.wait(self._behind)

    def count_since(self, moment: float) -> None:
        """Add the time since this moment to `waited`. The moment is a value of `time.perf_counter`."""
        self.waited += time.perf_counter() - moment

    async def flush(self) -> None:
        """Return once everything recorded so far is durable. With durability `exit`, returns at once."""
        if self._keeps:
            with self.wait():
                await self._patiently(self.thread.flush())

    def as_recorded(self, entry: E) -> E:
        """Return this entry as it would be recorded: redacted."""
        (kept,) = self.thread.redacted([entry])
        return cast(E, kept)

    @property
    def _keeps(self) -> bool:
        """False with durability `exit`: then nothing is written before the run ends."""
        return self.thread.durability != "exit"

    def _completed(self, entries: tuple[Logged, ...]) -> tuple[Logged, ...]:
        """Return these entries, completed with the seconds worked and with the end of the exchange.

        The seconds are added if the entries end a piece of work, and the end if they set a status other than `running`.
        """
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
        """Return these entries. If they end a piece of work, put an entry in front with the seconds since the last one."""
        if not any(map(_ends_work, entries)):
            return entries
        before, self._counted = self._counted, time.monotonic()
        return (Spend(cost_usd=0.0, seconds=round(self._counted - before, 6)), *entries)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count the time inside this block as waiting for the record to be durable."""
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
    """Records the steps of one tool call, and looks up recorded ones."""

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
        """Record this entry. Raises `Stopped`, which stops the run, if the store is unavailable or the lease is lost.

        Any other error would be taken for an error of the tool, and be passed on to the model.
        """
        try:
            await self._journal.record(entry)
        except (LeaseLost, Unavailable) as error:
            raise Stopped(error) from error

    def recorded(self, key: str) -> Any:
        if key in self._outcomes:
            return self._outcomes[key]
        return Missing.IN_DOUBT if key in self._begun else Missing.NOT_RECORDED
