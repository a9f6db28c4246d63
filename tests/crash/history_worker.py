"""Processes that work on the same threads of one store and write down every call and its answer, until they are killed.

`python -m tests.crash.history_worker` is a warm parent: it forks a child for each job on its input, and reaps a child when
it is told to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import msgspec

from clew._runtime import clock
from clew.checkpointers import Checkpointer, Head, open_checkpointer
from clew.errors import LeaseLost, ThreadBusy, Unavailable
from clew.log import MessageAdded
from clew.messages import user
from clew.testing import Journal, Recorder, Visitor
from clew.testing.contract.builders import digest_of
from clew.threads import Thread
from tests.crash.holder import move_elsewhere, shorten_leases

__all__ = ["LEASE", "SABOTAGES", "Job"]

LEASE = 1.0
"""Seconds that a lease lasts: less than a process is frozen for at times."""
AGE = 5.0
"""Seconds after which all processes turn to other threads, so that no log grows long."""
SKEWS = (0.0, 45.0, -45.0, 600.0, -600.0, 3600.0, -3600.0)
"""By how many seconds the clock of a process is wrong. Two of them are up to two hours apart."""
A_DAY = timedelta(days=1)
PAUSE = 0.02


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do."""

    url: str
    folder: str
    """Where the journals are. A file `stop` there ends the worker in order."""
    name: str = ""
    """Of the process; no other one of the history has it."""
    seed: int = 0
    visitors: int = 2
    holders: int = 1
    sabotage: str = ""
    """What to break, to show that it is found."""


class Clock:
    """The wall clock of this process, which is wrong, and set anew at every SIGUSR1."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._ahead = 0.0
        self.step()
        vars(clock)["time"] = SimpleNamespace(time=self.time, monotonic=time.monotonic)

    def step(self) -> None:
        self._ahead = self._dice.choice(SKEWS)

    def time(self) -> float:
        return time.time() + self._ahead


class Worker:
    """Several tasks on one store, as an agent process has them."""

    def __init__(self, job: Job, store: Checkpointer) -> None:
        self._job = job
        self._store = store
        self._dice = random.Random(job.seed)
        self._stop = Path(job.folder, "stop")
        self._parent = os.getppid()
        self._record = Recorder(
            sabotaged(store, job), Journal(Path(job.folder, f"{job.name}.journal")), process=job.name
        )
        self._blobs: list[str] = []
        self._count = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._job.visitors):
                group.create_task(self._visit(f"{self._job.name}.{number}"))
            for _ in range(self._job.holders):
                group.create_task(self._repeat(self._hold))
            group.create_task(self._repeat(self._keep_blobs))

    async def _repeat(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        while not self._is_over():
            await work()

    def _is_over(self) -> bool:
        """Whether this process was told to end, or its parent is gone."""
        return self._stop.exists() or os.getppid() != self._parent

    async def _visit(self, name: str) -> None:
        """Make calls of all kinds on threads that the others use too."""
        while not self._is_over():
            age = self._age()
            visitor = Visitor(self._record, self._dice, f"{name}.{age}", [f"{age}/{number}" for number in range(3)])
            while age == self._age() and not self._is_over():
                await visitor.step()
                await asyncio.sleep(0)

    async def _hold(self) -> None:
        """Take the lease of a thread, from a live holder too, work under it, and give it back; or lose it."""
        self._count += 1
        chance = self._dice.random()
        thread = Thread.open(
            self._record.as_writer(f"{self._job.name}.{self._count}"),
            f"{self._age()}/leased/{self._dice.randrange(2)}",
            takeover=chance < 0.2,
            wait=2 * LEASE,
        )
        try:
            async with thread:
                for _ in range(self._dice.randrange(1, 6)):
                    await self._work_on(thread)
                if chance > 0.9:
                    await thread.delete()
        except (ThreadBusy, LeaseLost, Unavailable):
            thread.abandon()
            await asyncio.sleep(PAUSE)

    async def _work_on(self, thread: Thread) -> None:
        chance = self._dice.random()
        if chance < 0.6:
            await thread.append(MessageAdded(user(self._text())))
        elif chance < 0.8:
            await thread.renew()
        elif chance < 0.9:
            await thread.fence()
        else:
            await asyncio.sleep(self._dice.uniform(0, LEASE))

    async def _keep_blobs(self) -> None:
        """Put blobs and look for them again. A collection of old blobs, which the journal does not have, goes on beside it:
        it may take none of them, whatever the clock of this process shows."""
        data = [self._text().encode() * self._dice.choice((1, 1, 2000)) for _ in range(self._dice.randrange(1, 4))]
        blobs = {digest_of(one): one for one in data}
        known = self._dice.sample(self._blobs, min(4, len(self._blobs)))
        try:
            await self._record.put_blobs(blobs)
            self._blobs.extend(blobs)
            await self._record.missing_blobs(known)
            if self._dice.random() < 0.2:
                await self._store.delete_blobs(self._blobs[-8:], untouched_for=A_DAY)
            await self._record.get_blobs([*blobs, *known])
            if self._dice.random() < 0.3:
                await self._record.delete_blobs([self._blobs.pop()], untouched_for=timedelta(0))
        except Unavailable:
            pass
        await asyncio.sleep(PAUSE)

    def _text(self) -> str:
        """Return a text that no other call has."""
        self._count += 1
        return f"{self._job.name} says {self._count}. "

    @staticmethod
    def _age() -> int:
        return int(time.monotonic() // AGE)


class Sabotaged(Recorder):
    """A store that now and then breaks a promise."""

    def __init__(self, store: Checkpointer, dice: random.Random) -> None:
        super().__init__(store, lambda call: None, process="")
        self._chance = dice

    def is_time(self) -> bool:
        return self._chance.random() < 0.2


class LosesAppends(Sabotaged):
    """Acknowledges an append that it has not made."""

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        if at == 0 or not self.is_time():
            await super().append(thread_id, frames, at=at, head=head, refs=refs)


class AnswersStale(Sabotaged):
    """Returns a head that it returned before, although the thread has a newer one."""

    def __init__(self, store: Checkpointer, dice: random.Random) -> None:
        super().__init__(store, dice)
        self._old: dict[str, Head | None] = {}

    async def head(self, thread_id: str) -> Head | None:
        head = await super().head(thread_id)
        old = self._old.setdefault(thread_id, head)
        if self.is_time():
            return old
        self._old[thread_id] = head
        return head


class LosesBlobs(Sabotaged):
    """Acknowledges blobs that it does not keep."""

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        if not self.is_time():
            await super().put_blobs(blobs)


SABOTAGES: dict[str, type[Sabotaged]] = {
    "loses appends": LosesAppends,
    "answers stale": AnswersStale,
    "loses blobs": LosesBlobs,
}


def sabotaged(store: Checkpointer, job: Job) -> Checkpointer:
    return SABOTAGES[job.sabotage](store, random.Random(job.seed)) if job.sabotage else store


async def work(job: Job) -> None:
    dice = random.Random(job.seed)
    wrong = Clock(dice)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, wrong.step)
    shorten_leases(LEASE)
    if dice.random() < 0.5:
        move_elsewhere()
    async with open_checkpointer(job.url) as store:
        await Worker(job, store).run()


def serve() -> None:
    """Start a child for each job and say its pid; reap the child that a line names and say how it ended."""
    logging.getLogger("clew").addHandler(logging.NullHandler())
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a child handles it
    for line in sys.stdin:
        if line.startswith("reap "):
            _, status = os.waitpid(int(line.removeprefix("reap ")), 0)
            print(f"exit {os.waitstatus_to_exitcode(status)}", flush=True)
            continue
        job = msgspec.json.decode(line, type=Job)
        child = os.fork()
        if child == 0:
            asyncio.run(work(job))
            sys.exit()
        print(f"pid {child}", flush=True)


if __name__ == "__main__":
    serve()
