"""The journal of a run: it writes entries to the thread's log, and counts the time worked, what was spent, and the time
that the run waited for the store."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import msgspec

from clew._runtime.aio import settle
from clew.agent.exchanges import (
    JOINED,
    NO_END,
    OWN,
    SUPERSEDED,
    ExchangeSpan,
    OpenExchange,
    Spent,
    exchanges_in,
    spent_on,
)
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
    ToolIntent,
    ToolOutcome,
)
from clew.messages import Assistant, Message
from clew.threads import Thread
from clew.tools import Stopped
from clew.tools.context import Missing

__all__ = ["CallJournal", "Ends", "Journal"]

log = logging.getLogger("clew.agent")
E = TypeVar("E", bound=Logged)
Ends = Callable[[Thread, StatusChanged, BaseException | None], Logged]
"""Decides what is recorded at the end of a run: gets the thread, the status with which the run ends, and the error with
which it failed or was stopped, if any. Returns the entry to record instead of the status. For a program that runs agents
for others, and puts a thread back into the queue."""

PATIENCE = 20.0
"""While the store cannot be reached, failed writes are tried again for at most this many seconds, counted from the
first write that failed. A lease lasts longer than this."""
_LONGEST_REFUSAL = 300
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Journal:
    """Writes the log of a thread for a run. Entries are recorded in the order in which they are given.

    With each response of the model, each outcome of a tool call and each status, it also records the seconds worked, so
    that a limit on time holds across crashes.
    """

    def __init__(self, thread: Thread, ends: Ends | None = None) -> None:
        """`thread` is the open thread to write to. `ends` decides what is recorded at the end of the run, if the status
        with which it ended is not to be recorded as it is."""
        self.thread = thread
        self._ends = ends
        self.failure: BaseException | None = None
        """The error with which the run failed or was stopped; None while it goes on, and if it ended otherwise."""
        self.waited = 0.0
        """Seconds in which the run waited until its entries were stored. If several waits overlap, the time is counted
        once."""
        self.ending = False
        """True once the run has failed or was stopped. From then on, a write that fails because the store cannot be
        reached is tried again for only half of `PATIENCE`."""
        self._waiting = 0
        self._since = 0.0
        self._counted = time.monotonic()
        self._behind: set[asyncio.Task[Any]] = set()
        self._spent = Spent()
        self._lost = False
        """True from the start of a model call until its response or its refusal is recorded."""
        self._exchange: OpenExchange | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all background writes, even if this wait is cancelled, so that no write goes on after the thread's
        lease is given back."""
        await settle(self.catch_up())

    async def record(self, *entries: Logged) -> None:
        """Record these entries. The thread's durability decides when this returns. With `sync` that is when the entries
        are stored, and with `exit` at once: then they are stored when the run ends. With `async` it is at once too,
        unless one of them must be durable before work goes on: then it is when this one and all earlier entries are
        stored.

        Entries that must be durable are, for example, responses, statuses, and those that say that a tool call, or a
        step of one, is about to run or has ended. A step is a part of a tool's work that the tool runs with `ctx.step`.

        If one of the entries says that a tool, a step of it or a model call is about to begin, this also renews the
        lease if it has run out, and raises `LeaseLost` if another process has taken the thread. So nothing begins
        without the lease.
        """
        with self.wait():
            await self._patiently(self.thread.append(*self._completed(entries)))
            if any(map(_begins_effect, entries)):
                await self.keep_lease()

    async def record_end(self, ending: StatusChanged) -> None:
        """Record `ending`, the status with which the run ended.

        If the last write failed because the store could not be reached, nothing is written here. The entry is kept in
        memory then, and is written together with the release of the lease. So the end of a run waits for an unreachable
        store once, and not twice.
        """
        if self.thread.unreachable_since is not None:
            return self.hold(ending)
        with self.wait():
            return await self._patiently(self.thread.append(*self._completed((ending,))))

    async def _patiently(self, writing: Awaitable[None]) -> None:
        """Await this write. If the store is unavailable, for example because it restarts, try again until it has been
        unavailable for `PATIENCE` seconds, or for half of that when the run is ending. Then raise `Unavailable`. The
        entries are kept in memory meanwhile.

        The seconds are counted from the first write that failed. So several writes that fail share them, and do not
        wait one after the other.
        """
        began, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                return await writing
            except Unavailable as error:
                failure = error
            if self._is_too_long(began, pause):
                raise failure
            log.warning("thread %r: waiting for the store: %s", self.thread.thread_id, failure)
            await asyncio.sleep(pause)
            if self._is_too_long(began, 0):  # the run may be ending by now
                raise failure
            pause = min(_LONGEST_PAUSE, 2 * pause)
            writing = self.thread.flush()

    def _is_too_long(self, began: float, pause: float) -> bool:
        """Return whether to give up a write that failed, instead of trying it again after `pause` seconds. That is so
        if writes would then have failed for more than `PATIENCE` seconds, or for more than half of that when the run is
        ending. The time is counted from `began`, when this write was first tried, or from when the store became
        unreachable, if that was earlier."""
        since = self.thread.unreachable_since
        waited = time.monotonic() + pause - (began if since is None else min(began, since))
        return waited > (PATIENCE / 2 if self.ending else PATIENCE)

    async def keep_lease(self) -> None:
        """Renew the thread's lease if its time is over by the clock of this machine. Raises `LeaseLost` if another
        process has taken over the thread.

        `record` calls this before a tool, a step or a model call begins: the process may have been frozen, or the
        machine asleep, until after the lease had ended.
        """
        while self.thread.has_run_out:
            await self._patiently(self.thread.renew())

    async def fence(self) -> None:
        """Make the store confirm that this process still holds the thread's lease, and return once it has. A
        confirmation from before this call does not count. Raises `LeaseLost` if another process has taken over."""
        with self.wait():
            end, pause = time.monotonic() + PATIENCE, _FIRST_PAUSE
            while True:
                try:
                    return await self.thread.fence()
                except Unavailable as error:
                    if time.monotonic() + pause > end:
                        raise
                    log.warning("thread %r: waiting for the store: %s", self.thread.thread_id, error)
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)

    @property
    def spent(self) -> Spent:
        """What this run has spent so far, according to the entries that it recorded.

        Usage and cost are None if a model call was made and no response came.
        """
        return self._spent.unless_lost(self._lost)

    def begin_exchange(self, place: int, prompt_id: str, model: str) -> StateSet:
        """Begin the exchange of a new prompt, on which this run works from now on. The prompt's message will be at
        index `place` of the history, and `model` is the name of the model that will be asked.

        Returns the entry that must be recorded right after the prompt.
        """
        self._exchange = OpenExchange(place, OWN, model, prompt_id, Spent(), self._spent)
        return self._exchange.begun(self._spent, self.thread.present)

    def go_on_with(self, found: ExchangeSpan | None) -> None:
        """Set the exchange that this run works on to `found`, an exchange that is already on record. With None, the run
        works on no exchange yet."""
        self._exchange = None if found is None else OpenExchange.on(found, self._spent)

    def note_work(self, model: str) -> None:
        """Prepare a log entry that says that this run works on the current exchange with this model. The entry is
        stored together with the next entries. Does nothing if this run has prepared one already, or if there is no
        current exchange.

        Once the entry is stored, the exchange counts as interrupted if the run is killed, whatever status an earlier
        run had recorded for it.
        """
        if self._exchange is not None and not self._exchange.is_noted:
            self._exchange = msgspec.structs.replace(
                self._exchange, provider=OWN, model=model, is_open=True, is_noted=True
            )
            self.hold(self._exchange.begun(self._spent, self.thread.present))

    def leave_exchange(self, *, done: bool, together: bool = False) -> list[Logged]:
        """Return the entries that end the current exchange because another prompt is asked; none if its end is on
        record. `done` says whether its prompt was answered. If so, it is recorded as answered, even if the run was
        stopped right after the answer.

        If the prompt has responses but no answer, it is recorded that the answer to the new prompt is to be the answer
        to both: the model sees both prompts and the results of all calls. If the user then gives the old prompt again,
        it is not asked again, because its calls would be repeated.

        A prompt without any response is recorded as interrupted, and may be asked again. With `together`, its answer is
        to be that of the new prompt too.
        """
        left, self._exchange = self._exchange, None
        stopped_late = left is not None and done and not left.is_done and left.provider == OWN
        if left is None or not (left.is_open or stopped_late):
            return []
        if done:
            status, reason = "done", ""
        elif together or self._has_responses(left):
            status, reason = JOINED, ""
        else:
            status, reason = "interrupted", SUPERSEDED if left.is_noted else NO_END
        return [left.ended(self.thread.messages, status, reason, self._spent, self._lost)]

    def _has_responses(self, worked_on: OpenExchange) -> bool:
        """Return whether the model has responded to the exchange `worked_on`. If earlier prompts were left without an
        answer, so that one answer is given to all of them, a response to any of these counts too. Returns False if
        `worked_on` is not the last exchange on record."""
        found = exchanges_in(self.thread.checkpoint)
        if not found or found[-1].place != worked_on.place:
            return False
        together = itertools.takewhile(lambda each: each.is_last, reversed(found))
        return any(_is_response(message) for each in together for message in each.messages)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Return a context in which the caller makes its request to the model. The caller must have recorded the start
        of the model call before.

        If the vendor refuses the request and certainly does not charge for it, that is recorded together with the next
        entries. After any other error nothing is recorded: a model call without a response counts as possibly charged.
        Every error is raised again.
        """
        try:
            yield
        except ModelError as error:
            if error.is_free:
                self.hold(ModelCallRefused(error.reason[:_LONGEST_REFUSAL]))
            raise

    async def ask_again(self, model: str) -> None:
        """Record the start of another model call. Does nothing if the last recorded call still has neither response nor
        refusal."""
        if not self._lost:
            await self.record(ModelCallStarted(model))

    def _redacted_reason(self, reason: str) -> str:
        return self.as_recorded(StatusChanged("interrupted", reason)).reason

    def hold(self, *entries: Logged) -> None:
        """Keep these entries in memory, to be stored in one write with the next entries.

        A response, for example, is stored together with the entries that say that its calls are about to run.
        """
        self.thread.hold(*self._completed(entries))

    async def write(self) -> bool:
        """Store everything recorded so far, and return whether that succeeded. For use in the background, where an
        error would reach nobody.

        Returns False if the store is unavailable or the lease is lost; the next `record` or `flush` raises that error.
        With durability `exit`, which stores everything only at the end of the run, does nothing and returns True.
        """
        if self._keeps:
            if self.ending and self.thread.unreachable_since is not None:
                return False  # it is written with the release of the lease
            try:
                await self._patiently(self.thread.flush())
            except (LeaseLost, Unavailable) as error:  # raised again by the next write that is waited for
                log.warning("thread %r: not yet durable: %s", self.thread.thread_id, error)
                return False
        return True

    def follow(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Add asyncio tasks that still write entries in the background. The journal waits for these tasks before it
        gives the thread's lease back."""
        self._behind |= set(tasks)
        self._behind = {task for task in self._behind if not task.done()}

    async def catch_up(self) -> None:
        """Wait for the background writes to end. The events that these writes emit then come before the events of later
        work."""
        if self._behind:
            await asyncio.wait(self._behind)

    def count_since(self, moment: float) -> None:
        """Add the time since `moment`, a value of `time.perf_counter`, to `waited`, the seconds that the run has waited
        for the store so far."""
        self.waited += time.perf_counter() - moment

    async def flush(self) -> None:
        """Return once everything recorded so far is stored. With durability `exit`, by which nothing is stored before
        the run ends, return at once."""
        if self._keeps:
            with self.wait():
                await self._patiently(self.thread.flush())

    def as_recorded(self, entry: E) -> E:
        """Return this entry as it would be stored: without the secrets that the thread's `redact` setting removes."""
        (kept,) = self.thread.redacted([entry])
        return cast(E, kept)

    @property
    def _keeps(self) -> bool:
        """Whether entries are stored while the run goes on. False with durability `exit`, which stores them at the end."""
        return self.thread.durability != "exit"

    def _completed(self, entries: tuple[Logged, ...]) -> tuple[Logged, ...]:
        """Return these entries with those that the journal adds: the seconds worked, and the end of the current
        exchange.

        The seconds are added to a response of the model, an outcome of a tool call or a status. The end is added to a
        status other than `running`. Also adds what the entries spent to the sum of the run.
        """
        timed = tuple(map(self._ended_as, self._with_time(entries)))
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

    def _ended_as(self, entry: Logged) -> Logged:
        if self._ends is None or not isinstance(entry, StatusChanged) or entry.status == "running":
            return entry
        return self._ends(self.thread, entry, self.failure)

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
        """Return these entries. If one of them is a response of the model, an outcome of a tool call or a status, add
        an entry in front of them. It holds the seconds worked since such an entry was last added."""
        if not any(map(_ends_work, entries)):
            return entries
        before, self._counted = self._counted, time.monotonic()
        return (Spend(cost_usd=0.0, seconds=round(self._counted - before, 6)), *entries)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Add the time inside this context to `waited`, the seconds that the run waited for the store. Time for which
        several such contexts are open is counted once."""
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


def _begins_effect(entry: Logged) -> bool:
    return isinstance(entry, ModelCallStarted | StepIntent | ToolIntent)


class CallJournal:
    """Records the steps of one tool call, and looks up the steps that earlier attempts at the call recorded. A step is
    a part of a tool's work that the tool runs with `ctx.step`. Each step has a recorded outcome of its own."""

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

    async def fence(self) -> None:
        with _stopping():
            await self._journal.fence()

    async def outwait_predecessor(self) -> bool:
        return await self._journal.thread.outwait_predecessor()

    async def _record(self, entry: Logged) -> None:
        with _stopping():
            await self._journal.record(entry)

    def recorded(self, key: str) -> Any:
        if key in self._outcomes:
            return self._outcomes[key]
        return Missing.IN_DOUBT if key in self._begun else Missing.NOT_RECORDED


@contextmanager
def _stopping() -> Iterator[None]:
    """Return a context in which `LeaseLost` and `Unavailable` (the store cannot be reached) become `Stopped`, which
    stops the run.

    An error of another type would be taken for an error of the tool, and be passed on to the model.
    """
    try:
        yield
    except (LeaseLost, Unavailable) as error:
        raise Stopped(error) from error
