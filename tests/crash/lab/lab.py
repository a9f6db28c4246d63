"""A lab: a store, threads in it, and a fleet of workers that is disturbed while it works on them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from clew.checkpointers import Checkpointer, open_checkpointer
from tests.crash.lab.checks import Found, check_threads
from tests.crash.lab.ledger import Ledger
from tests.crash.lab.machines import Machines
from tests.crash.lab.work import Work
from tests.crash.lab.worker import Job
from tests.crash.processes import FULL
from tests.limits import PATIENCE
from tests.tally import count

__all__ = ["KILLS", "MACHINES", "Disturbance", "Lab", "killing", "tell"]

MACHINES = 4
THREADS, TURNS, KILLS = (100, 10, 210) if FULL else (24, 6, 6)
DELAY, PAUSE = 0.4, 0.3
WATCH = 36.0
"""Seconds for which at least one worker goes on after every kill: a lease of 30 s, and time to see that it has ended.
Nobody else can see that a worker on another machine has died."""

Disturbance = Callable[[Machines, Work], Awaitable[None]]
NewWork = Callable[[Checkpointer, int], Work]


class Lab:
    """One store, and the folder of a test."""

    def __init__(
        self, url: str, folder: Path, *, apart: bool = True, new_work: Callable[[Checkpointer, int], Work] = Work
    ) -> None:
        """`apart` says whether machines are hosts of their own. `new_work` makes the work."""
        self._url = url
        self._folder = folder
        self._apart = apart
        self._new_work = new_work
        self.job = Job(url=url, ledger=str(folder / "ledger"), files="", delay=DELAY, pause=PAUSE)

    async def run(self, disturb: Disturbance, threads: int = THREADS, turns: int = TURNS, **job: object) -> Found:
        """Have all work done while workers are disturbed, and check what came of it. `job` are changes to the workers'
        job."""
        given = msgspec.structs.replace(self.job, **job)
        async with open_checkpointer(self._url) as store:
            work = self._new_work(store, threads)
            await work.begin(turns)
            with Machines(MACHINES, self._folder, given, apart=self._apart) as machines:
                await disturb(machines, work)
                await work.finish(machines.said)
                for machine in machines.each:
                    await asyncio.to_thread(machine.drain)
            assert await work.unread() == []
            deeds = Ledger(Path(self.job.ledger)).deeds()
            return await check_threads(store, work.texts, deeds, machines, self._folder / "end")


def killing(kills: int, *, apart: bool = True) -> Disturbance:
    """Return a disturbance: about every second, a worker is killed at random, at times right after its start, and another
    prompt is given."""

    async def disturb(machines: Machines, work: Work) -> None:
        began = time.monotonic()
        for _ in range(kills):
            await asyncio.sleep(random.choice((0.1, 0.7, 1.0, 1.5)))
            await work.post()
            round_ = int((time.monotonic() - began) / WATCH)
            machines.kill_one({round_ % MACHINES, (round_ - 1) % MACHINES} if apart else ())

    return disturb


def tell(found: Found, bound: float, *, patience: float = PATIENCE) -> None:
    """Count and print what happened, and fail if a promise was broken. `bound` is the time within which threads of killed
    workers go on; no clock decides."""
    late = [seconds for seconds in found.recoveries if seconds > bound]
    slowest = max(found.recoveries, default=0.0)
    print(
        f"{found.turns} turns, {len(found.recoveries)} threads recovered, the last after {slowest:.1f} s; {found.in_doubt} "
        f"calls in doubt, {found.asked_again} requests and {found.notes_made_again} notes made again"
    )
    count("threads recovered", len(found.recoveries))
    count(f"threads recovered after more than {bound:.0f} s", len(late))
    count("calls told as in doubt", found.in_doubt)
    assert not found.wrong, "\n".join(found.wrong)
    assert slowest < patience
