"""`Worker`: takes threads that are due from a store, and runs their agents."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Literal

import msgspec

from clew._runtime.aio import cancel_and_wait
from clew._runtime.clock import now
from clew.agent import Agent, Run, RunResult
from clew.agent.arguments import check_count, check_label, check_timeout
from clew.agent.children import hosted
from clew.agent.exchanges import reason_of
from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.checkpointers.bells import listen, ring_soon
from clew.errors import ClewError, Corrupt, InvalidInput, LeaseLost, Retry, ThreadBusy, Unavailable, UsageError
from clew.log import Logged, Queued, StatusChanged
from clew.threads import Thread
from clew.threads.heads import is_inbox, queued_in
from clew.threads.leases import is_over, lease_time, note_seen
from clew.workers.events import Counts, Ended, Pulse, Taken, WorkerEvent
from clew.workers.places import waits_since
from clew.workers.queue import put_back, settle_inbox
from clew.workers.retries import Retries, ending_of, retry_of
from clew.workers.shares import Limits, Shares, applying, check_limits
from clew.workers.slots import NoSlot, slots

__all__ = ["Worker"]

log = logging.getLogger("clew.workers")

_PAGE = 50
_MOST_PAGES = 10
"""How far a worker looks into the queue of an agent at most: so many pages of `_PAGE` threads."""
_SWEEP = 2.0
"""Seconds between two looks at the threads that run anywhere, for those whose worker has died."""
_BUSY = 2.0
"""Seconds for which a worker leaves a thread alone that somebody else runs."""
_SHORTEST_WAIT = 0.05
_LONGEST_WAIT = 30.0
"""The longest pause between two tries to reach a store, in seconds."""


class Worker:
    """Takes threads that are due from a store, and runs their agents, several at a time.

        worker = Worker([clerk, researcher], concurrency=8)
        await worker.run()

    Any number of workers, on any machines that reach the store, share its queue. There is no coordinator: whoever gets the
    lease of a thread runs it, and the thread of a worker that died is taken by another one once its lease has ended. A
    thread is put into the queue with `enqueue`.
    """

    def __init__(
        self,
        agents: Agent | Iterable[Agent],
        *,
        store: Checkpointer | None = None,
        concurrency: int = 8,
        tags: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        retries: Retries | None = None,
        timeout: float | None = None,
        label: str = "worker",
        poll: float = 1.0,
        on_event: Callable[[WorkerEvent], None] | None = None,
    ) -> None:
        """`agents` are the agents that this worker can run; it takes only threads of agents with their names. `store` is
        by default that of the first agent. `concurrency` is how many threads it runs at a time. With `tags` it takes only
        threads that have all of them. `limits` say how many threads may run at a time, in all workers together that are
        given the same limit: `{"agent:clerk": 4, "tag:gpu": 1, "tag:customer=acme": 2, "tenant": 20}`. `retries` says
        how often a thread is tried. After `timeout` seconds a run is interrupted. `label` names the worker in leases.
        `poll` is how many seconds pass at most before it looks into the queue again; PostgreSQL, Redis and Valkey tell it
        at once that there is something to take, and so does every store in the same process. `on_event` is called with
        what happens."""
        given = [agents] if isinstance(agents, Agent) else list(agents)
        self._agents = _by_name(given)
        check_count("concurrency", concurrency)
        check_timeout(timeout)
        check_label(label)
        check_limits(limits or {})
        if isinstance(poll, bool) or not isinstance(poll, int | float) or not poll > 0:
            raise InvalidInput(f"poll is a number of seconds above 0, not {poll!r}")
        self._given_store = store
        self._concurrency = concurrency
        self._tags = dict(tags or {})
        self._limits = dict(limits or {})
        self._retries = Retries() if retries is None else retries
        self._timeout = timeout
        self._label = label
        self._poll = float(poll)
        self._on_event = on_event
        self._shares = Shares()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, Run[RunResult]] = {}
        self._left_alone: dict[str, float] = {}
        """Threads that somebody else runs, and until when they are left alone, by `time.monotonic`."""
        self._full: dict[str, float] = {}
        """Limits that were reached, and until when no thread is taken to which they apply."""
        self._draining = False
        self._changed = asyncio.Event()
        self._found: list[Head] = []
        """Threads that were due at the last look into the queue, and are not begun here."""
        self._found_all = False
        """Whether that look went to the end of what was due."""
        self._fresh_until = 0.0
        """Until when the result of that look is used, by `time.monotonic`."""
        self._swept = 0.0
        self._failures = 0
        self._damage: set[str] = set()
        """The errors about damaged threads and heads that were logged."""
        self._next_due: datetime | None = None
        """When a thread that was seen in the queue can be taken; None if none was seen."""
        self.counts = Counts()
        self.pulse = Pulse()

    @property
    def store(self) -> Checkpointer:
        return self._given_store or next(iter(self._agents.values())).checkpointer

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents that this worker can run."""
        return tuple(self._agents)

    @property
    def concurrency(self) -> int:
        return self._concurrency

    @property
    def poll(self) -> float:
        return self._poll

    @property
    def running(self) -> int:
        """How many threads this worker runs now."""
        return len(self._tasks)

    @property
    def is_draining(self) -> bool:
        return self._draining

    async def run(self, *, until_empty: bool = False) -> None:
        """Take threads and run them, until `drain` is called. With `until_empty`, return as soon as nothing is due and
        nothing runs here.

        If this is cancelled, the runs are stopped at their next barrier and their threads go back into the queue.
        """
        bell = asyncio.get_running_loop().create_task(listen(self.store, self._look_again))
        try:
            while not self._draining:
                self._changed.clear()
                self.pulse.round_at = time.monotonic()
                if until_empty and not self._tasks:
                    self._fresh_until = 0.0
                is_empty = not await self._fill()
                if until_empty and is_empty and not self._tasks:
                    return
                if not self._draining:
                    await self._wait()
            await self._finish()
        except BaseException:
            await cancel_and_wait(self._tasks.values())
            raise
        finally:
            await cancel_and_wait([bell])

    def drain(self) -> None:
        """Take no more threads, end those that run after their open turn, and then let `run` return. Their threads go back
        to their place in the queue. Nothing is cut off in the middle."""
        self._draining = True
        for run in self._runs.values():
            run.drain()
        self._changed.set()

    async def _wait(self) -> None:
        """Wait until a run has ended, the worker is drained, or it is time to look into the queue again."""
        pause = self._poll * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
        if self._failures:
            pause = min(_LONGEST_WAIT, pause * 2**self._failures)
        elif self._next_due is not None:
            pause = min(pause, max(_SHORTEST_WAIT, (self._next_due - now()).total_seconds()))
        if self._found:  # threads that could not be taken, because of a limit or because somebody else has them
            pause = min(pause, _BUSY)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._changed.wait()

    async def _finish(self) -> None:
        while self._tasks:
            self.pulse.round_at = time.monotonic()
            await asyncio.wait(self._tasks.values(), timeout=_LONGEST_WAIT)

    async def _fill(self) -> bool:
        """Begin as many runs as there is room for. Return whether there is anything to do: a thread that is due, or one
        that runs somewhere. If the store cannot be reached, log that; the worker tries again after a pause."""
        try:
            found = await self._sweep()
            free = self._concurrency - len(self._tasks)
            if free > 0:
                due = [head for head in self._found if self._may_take(head)]
                if time.monotonic() >= self._fresh_until or not (due or self._found_all):
                    due = await self._look(free)
                for head in self._shares.choose(due, free):
                    self._begin(head)
                found = found or bool(self._found)
        except Unavailable as error:
            self._failures = min(self._failures + 1, 10)
            self.pulse.is_store_ok = False
            self._fresh_until = 0.0
            log.warning("the queue could not be read: %s", error)
            return True
        self._failures = 0
        return found

    def _look_again(self) -> None:
        """Let the worker look into the queue at once, because there may be something new."""
        self._fresh_until = 0.0
        self._changed.set()

    async def _look(self, free: int) -> list[Head]:
        """Look into the queue. Return threads that are due and may be taken, by agent and then in the order in which they
        are due: some more of each agent than there is room for, so that the choice can be fair.

        What is found is also used for the next runs, so that a worker with many short runs does not look as often. Before
        a thread is run, it is looked at once more.
        """
        self._fresh_until = time.monotonic() + self._poll
        self._found, self._found_all, self._next_due = [], True, None
        self.pulse.oldest_due = 0.0
        due: list[Head] = []
        for name in self._agents:
            enough, some = max(_PAGE, 4 * free), 0
            async for head in self._queued(name):
                if is_inbox(head):
                    await self._look_after(head)
                    continue
                self._found.append(head)
                if self._may_take(head):
                    due.append(head)
                    some += 1
                    if some == enough:
                        self._found_all = False
                        break
        if self._next_due is not None:
            self._fresh_until = min(self._fresh_until, time.monotonic() + (self._next_due - now()).total_seconds())
        return due

    async def _queued(self, agent: str) -> AsyncIterator[Head]:
        """Yield the heads of an agent that are due, earliest first, of at most `_MOST_PAGES` pages."""
        query = HeadQuery(agent=agent, order="due", tags=self._tags, limit=_PAGE)
        moment = now()
        for _ in range(_MOST_PAGES):
            last, count = None, 0
            async for head in self._heads(query):
                if head.due is None or head.due > moment:
                    if head.due is not None:
                        self._look_by(head.due)
                    return
                last, count = head, count + 1
                self._note_wait(head, moment)
                yield head
            if last is None or count < _PAGE:
                return
            query = query.after(last)
        self._found_all = False

    async def _heads(self, query: HeadQuery) -> AsyncIterator[Head]:
        """Yield the heads that match the query. Log it once if some cannot be read: the others are run all the same."""
        try:
            async for head in self.store.heads(query):
                self._note_answer()
                yield head
        except Corrupt as error:
            self._warn_once(error)
        self._note_answer()

    def _warn_once(self, error: ClewError) -> None:
        if str(error) not in self._damage:
            self._damage.add(str(error))
            log.warning("%s", error)

    def _note_answer(self) -> None:
        self.pulse.is_store_ok = True
        self.pulse.looked_at = time.monotonic()

    def _look_by(self, moment: datetime) -> None:
        """Note that the worker has to look again at this moment at the latest: a thread is due then."""
        self._next_due = moment if self._next_due is None else min(self._next_due, moment)

    def _note_wait(self, head: Head, moment: datetime) -> None:
        if head.status == "queued" and (since := waits_since(head)) is not None:
            self.pulse.oldest_due = max(self.pulse.oldest_due, (moment - since).total_seconds())

    async def _look_from_afar(self) -> None:
        """Find out for how long threads have been waiting, while there is no room to run any."""
        moment, self.pulse.oldest_due = now(), 0.0
        for name in self._agents:
            async for head in self._heads(HeadQuery(agent=name, order="due", tags=self._tags, limit=_PAGE)):
                if head.due is None or head.due > moment:
                    break
                self._note_wait(head, moment)

    def _may_take(self, head: Head) -> bool:
        moment = time.monotonic()
        if head.status != "queued" or head.thread_id in self._tasks:
            return False
        if self._left_alone.get(head.thread_id, 0.0) > moment:
            return False
        return not any(self._full.get(name, 0.0) > moment for name, _ in applying(self._limits, head))

    async def _look_after(self, inbox: Head) -> None:
        if self._left_alone.get(inbox.thread_id, 0.0) > time.monotonic():
            return
        try:
            is_settled = await settle_inbox(self.store, inbox)
        except Unavailable:
            raise
        except ClewError as error:  # damaged, or of a newer version: the worker goes on with others
            self._warn_once(error)
            self._leave_alone(inbox.thread_id, _LONGEST_WAIT)
            return
        if is_settled:
            self._look_again()
        else:
            self._leave_alone(inbox.thread_id, _BUSY)

    async def _sweep(self) -> bool:
        """Look at the threads that workers run, every `_SWEEP` seconds, and put those back into the queue whose worker has
        died. Return whether there are any threads that run.

        That a worker has died is known if its process is gone, or once its lease was seen unchanged for as long as it
        lasts. So every lease has to be looked at from its beginning on, also long before it ends.
        """
        if time.monotonic() - self._swept < _SWEEP:
            return bool(self._tasks)
        self._swept = time.monotonic()
        self._forget()
        found = False
        for name in self._agents:
            asked = time.monotonic()
            async for head in self._heads(HeadQuery(agent=name, order="due", status="running", tags=self._tags)):
                if head.lease is None or is_inbox(head):
                    continue
                found = True
                is_gone = is_over(head.lease) or note_seen(head, asked) >= lease_time(head)
                if is_gone and head.thread_id not in self._tasks:
                    await self._recover(head)
        if len(self._tasks) >= self._concurrency:
            await self._look_from_afar()
        return found

    async def _recover(self, head: Head) -> None:
        if self._left_alone.get(head.thread_id, 0.0) > time.monotonic():
            return
        reason = f"{head.lease.owner if head.lease else 'its worker'} ended without a word"
        try:
            again = await put_back(self.store, head, self._retries, reason, Retry("now"))
        except ThreadBusy:
            return
        except Unavailable:
            raise
        except ClewError as error:  # damaged, or of a newer version: the worker goes on with others
            self._warn_once(error)
            self._leave_alone(head.thread_id, _LONGEST_WAIT)
            return
        if again is not None:
            self.counts.recovered += 1
            log.warning("thread %r: %s; it is %s", head.thread_id, reason, again.status)
            self._look_again()

    def _forget(self) -> None:
        """Forget which threads were busy, and which limits reached, some time ago."""
        moment = time.monotonic()
        self._left_alone = {name: until for name, until in self._left_alone.items() if until > moment}
        self._full = {name: until for name, until in self._full.items() if until > moment}

    def _leave_alone(self, thread_id: str, seconds: float) -> None:
        self._left_alone[thread_id] = time.monotonic() + seconds

    def _begin(self, head: Head) -> None:
        self._found = [other for other in self._found if other.thread_id != head.thread_id]
        task = asyncio.get_running_loop().create_task(self._work(head))
        self._tasks[head.thread_id] = task
        self._shares.begin(head)
        task.add_done_callback(lambda task: self._end(head))

    def _end(self, head: Head) -> None:
        del self._tasks[head.thread_id]
        self._shares.end(head)
        self._changed.set()

    async def _work(self, head: Head) -> None:
        """Run a thread, and say what became of it. Raises only if it is cancelled."""
        began = time.monotonic()
        try:
            async with slots(self.store, applying(self._limits, head), self._label):
                current = await self.store.head(head.thread_id)
                if current is None or current.status != "queued" or current.due is None or current.due > now():
                    return  # another worker has run it since it was found
                ended = await self._run(current)
        except NoSlot as full:
            self._full[full.name] = time.monotonic() + min(self._poll, _BUSY)
            self.counts.limits_reached += 1
            return
        except ClewError as error:  # of a slot, or of the last look at the thread
            self._leave_alone(head.thread_id, _BUSY)
            log.warning("thread %r: %s", head.thread_id, error)
            return
        self.counts.ended[ended.status] = self.counts.ended.get(ended.status, 0) + 1
        self._tell(msgspec.structs.replace(ended, seconds=round(time.monotonic() - began, 3)))
        if ended.status == "queued":
            await ring_soon(self.store)

    async def _run(self, head: Head) -> Ended:
        tries = head.queue.tries if head.queue is not None else 0
        ending = _Ending(self._retries)
        agent = hosted(self._agents[head.agent], self.store, self._label, ending.decide)
        run = agent.resume(thread_id=head.thread_id, timeout=self._timeout)
        self._runs[head.thread_id] = run
        if self._draining:
            run.drain()
        self.counts.taken += 1
        self._tell(Taken(head.thread_id, head.agent, tries + 1))
        try:
            result = await run
        except (ThreadBusy, LeaseLost) as error:
            self._leave_alone(head.thread_id, _BUSY)
            return Ended(head.thread_id, head.agent, "busy", str(error))
        except Exception as error:  # noqa: BLE001 - whatever it was, it is this thread's, and the others go on
            return await self._failed(head, ending, error)
        finally:
            del self._runs[head.thread_id]
        status, reason = ending.told or ("done", result.reason)
        return Ended(head.thread_id, head.agent, status, reason, turns=result.turns)

    async def _failed(self, head: Head, ending: _Ending, error: Exception) -> Ended:
        """Return what became of a thread whose run failed. If nothing is on record of that, because the run failed before
        it had begun, record it now."""
        level = logging.WARNING if self._on_event is None else logging.INFO  # who gets the events hears of it there
        log.log(level, "thread %r: %s", head.thread_id, reason_of(error))
        if ending.told is None and isinstance(error, Unavailable):
            self._leave_alone(head.thread_id, _BUSY)
            return Ended(head.thread_id, head.agent, "queued", str(error))
        if ending.told is None:
            try:
                await put_back(self.store, head, self._retries, reason_of(error), retry_of(error))
            except ClewError as second:  # busy, not to be reached, damaged, or refused
                self._leave_alone(head.thread_id, _BUSY)
                log.warning("thread %r: %s", head.thread_id, second)
        status, reason = ending.told or ("failed", reason_of(error))
        return Ended(head.thread_id, head.agent, status, reason)

    def _tell(self, event: WorkerEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)


class _Ending:
    """Decides what is recorded at the end of a run, and remembers it."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self.told: tuple[Literal["done", "waiting", "interrupted", "failed", "queued"], str] | None = None
        """The status that was recorded, and its reason; None if nothing was."""

    def decide(self, thread: Thread, ending: StatusChanged, error: BaseException | None) -> Logged:
        present = thread.present
        queued = queued_in(present, thread.head.log_id)
        entry = ending if queued is None else ending_of(self._retries, queued, present.turns, ending, error)
        if isinstance(entry, Queued):
            self.told = "queued", entry.reason
        elif isinstance(entry, StatusChanged) and entry.status != "running":
            self.told = entry.status, entry.reason
        return entry


def _by_name(agents: list[Agent]) -> dict[str, Agent]:
    if not agents:
        raise InvalidInput("a worker needs at least one agent: Worker([agent])")
    found: dict[str, Agent] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            raise InvalidInput(f"a worker runs agents, and {agent!r} is none")
        if agent.name in found:
            named = f"called {agent.name!r}" if agent.name else "without a name"
            raise UsageError(f"two agents are {named}. A worker finds an agent by its name: Agent(…, name=…)")
        found[agent.name] = agent
    return found
