"""`Worker`: takes threads that are due from a store, and runs their agents."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Literal

import msgspec

from clew._runtime.aio import cancel_and_wait
from clew._runtime.clock import now
from clew.agent import Agent, Run, RunResult
from clew.agent.arguments import check_count, check_label, check_timeout
from clew.agent.children import hosted
from clew.agent.exchanges import reason_of
from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.errors import InvalidInput, LeaseLost, Retry, ThreadBusy, Unavailable, UsageError
from clew.log import Logged, Queued, StatusChanged
from clew.threads import Thread
from clew.threads.heads import is_inbox, queued_in
from clew.threads.leases import is_over, lease_time, note_seen
from clew.workers.queue import put_back, settle_inbox
from clew.workers.retries import Retries, ending_of, retry_of
from clew.workers.shares import Limits, Shares, applying, check_limits
from clew.workers.slots import NoSlot, slots

__all__ = ["Ended", "Taken", "Worker", "WorkerEvent"]

log = logging.getLogger("clew.workers")

_PAGE = 50
_MOST_PAGES = 10
"""How far a worker looks into the queue of an agent at most: so many pages of `_PAGE` threads."""
_SWEEP = 2.0
"""Seconds between two looks at the threads that run anywhere, for those whose worker has died."""
_BUSY = 2.0
"""Seconds for which a worker leaves a thread alone that somebody else runs."""
_LONGEST_WAIT = 30.0
"""The longest pause between two tries to reach a store, in seconds."""


class Taken(msgspec.Struct, frozen=True):
    """A worker has begun to run a thread."""

    thread_id: str
    agent: str
    tries: int


class Ended(msgspec.Struct, frozen=True):
    """A run of a worker has ended. `status` is that of the thread: `queued` if it is tried again, `failed` if it failed or
    was set aside, and `busy` if somebody else had it or has taken it over."""

    thread_id: str
    agent: str
    status: Literal["done", "waiting", "interrupted", "failed", "queued", "busy"]
    reason: str = ""
    seconds: float = 0.0
    turns: int = 0


WorkerEvent = Taken | Ended


class Counts(msgspec.Struct):
    """What a worker has done since it was made."""

    taken: int = 0
    recovered: int = 0
    """How many threads it took from workers that had died."""
    ended: dict[str, int] = {}
    """How many runs ended, by the status of the thread."""


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
        `poll` is how many seconds pass at most before it looks into the queue again. `on_event` is called with what
        happens."""
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
        self._swept = 0.0
        self._failures = 0
        self.counts = Counts()

    @property
    def store(self) -> Checkpointer:
        return self._given_store or next(iter(self._agents.values())).checkpointer

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
        try:
            while not self._draining:
                self._changed.clear()
                is_empty = not await self._fill()
                if until_empty and is_empty and not self._tasks:
                    return
                if not self._draining:
                    await self._wait()
            await self._finish()
        except BaseException:
            await cancel_and_wait(self._tasks.values())
            raise

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
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._changed.wait()

    async def _finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _fill(self) -> bool:
        """Begin as many runs as there is room for. Return whether there is anything to do: a thread that is due, or one
        that runs somewhere. If the store cannot be reached, log that; the worker tries again after a pause."""
        try:
            found = await self._sweep()
            free = self._concurrency - len(self._tasks)
            if free > 0:
                due, are_others = await self._due(free)
                for head in self._shares.choose(due, free):
                    self._begin(head)
                found = found or bool(due) or are_others
        except Unavailable as error:
            self._failures = min(self._failures + 1, 10)
            log.warning("the queue could not be read: %s", error)
            return True
        self._failures = 0
        return found

    async def _due(self, free: int) -> tuple[list[Head], bool]:
        """Return threads that are due and may be taken, by agent and then in the order in which they are due: some more of
        each agent than there is room for, so that the choice can be fair. Also return whether others are due that may not
        be taken now, because of a limit or because somebody else has them."""
        found: list[Head] = []
        are_others = False
        for name in self._agents:
            enough = max(_PAGE, 4 * free)
            some = 0
            async for head in self._queued(name):
                if is_inbox(head):
                    await self._look_after(head)
                elif self._may_take(head):
                    found.append(head)
                    some += 1
                    if some == enough:
                        break
                else:
                    are_others = True
        return found, are_others

    async def _queued(self, agent: str) -> AsyncIterator[Head]:
        """Yield the heads of an agent that are due, earliest first, of at most `_MOST_PAGES` pages."""
        query = HeadQuery(agent=agent, order="due", tags=self._tags, limit=_PAGE)
        moment = now()
        for _ in range(_MOST_PAGES):
            last, count = None, 0
            async for head in self.store.heads(query):
                if head.due is None or head.due > moment:
                    return
                last, count = head, count + 1
                yield head
            if last is None or count < _PAGE:
                return
            query = query.after(last)

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
        if await settle_inbox(self.store, inbox):
            self._changed.set()
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
            async for head in self.store.heads(HeadQuery(agent=name, order="due", status="running", tags=self._tags)):
                if head.lease is None or is_inbox(head):
                    continue
                found = True
                is_gone = is_over(head.lease) or note_seen(head, asked) >= lease_time(head)
                if is_gone and head.thread_id not in self._tasks:
                    await self._recover(head)
        return found

    async def _recover(self, head: Head) -> None:
        reason = f"{head.lease.owner if head.lease else 'its worker'} ended without a word"
        try:
            again = await put_back(self.store, head.thread_id, self._retries, reason, Retry("now"))
        except ThreadBusy:
            return
        if again is not None:
            self.counts.recovered += 1
            log.warning("thread %r: %s; it is %s", head.thread_id, reason, again.status)
            self._changed.set()

    def _forget(self) -> None:
        """Forget which threads were busy, and which limits reached, some time ago."""
        moment = time.monotonic()
        self._left_alone = {name: until for name, until in self._left_alone.items() if until > moment}
        self._full = {name: until for name, until in self._full.items() if until > moment}

    def _leave_alone(self, thread_id: str, seconds: float) -> None:
        self._left_alone[thread_id] = time.monotonic() + seconds

    def _begin(self, head: Head) -> None:
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
                ended = await self._run(head)
        except NoSlot as full:
            self._full[full.name] = time.monotonic() + self._poll
            return
        except Unavailable as error:  # of a slot
            self._leave_alone(head.thread_id, _BUSY)
            log.warning("thread %r: %s", head.thread_id, error)
            return
        self.counts.ended[ended.status] = self.counts.ended.get(ended.status, 0) + 1
        self._tell(msgspec.structs.replace(ended, seconds=round(time.monotonic() - began, 3)))

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
        log.warning("thread %r: %s", head.thread_id, reason_of(error))
        if ending.told is None and isinstance(error, Unavailable):
            self._leave_alone(head.thread_id, _BUSY)
            return Ended(head.thread_id, head.agent, "queued", str(error))
        if ending.told is None:
            try:
                await put_back(self.store, head.thread_id, self._retries, reason_of(error), retry_of(error))
            except (ThreadBusy, Unavailable) as second:
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
