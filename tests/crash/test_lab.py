"""A fleet of workers on machines of their own, killed every second: every thread is finished, and nothing happens twice
unseen."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from clew.checkpointers import open_checkpointer
from tests.crash.history_sites import Site, postgres, redis, s3
from tests.crash.lab.checks import Found, check_threads
from tests.crash.lab.ledger import Ledger
from tests.crash.lab.machines import Machines
from tests.crash.lab.work import Work
from tests.crash.lab.worker import Job
from tests.crash.processes import FULL
from tests.limits import PATIENCE
from tests.tally import count

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.anyio]

MACHINES = 4
THREADS, TURNS, KILLS = (100, 10, 210) if FULL else (24, 6, 6)
DELAY, PAUSE = (0.6, 0.1) if FULL else (0.5, 0.1)
WATCH = 36.0
"""Seconds for which at least one worker goes on after every kill: a lease of 30 s, and time to see that it has ended.
Nobody else can see that a worker on another machine has died."""


class Lab:
    """One store, the threads in it, and the machines that run them."""

    def __init__(self, url: str, folder: Path, *, apart: bool) -> None:
        self._url = url
        self._folder = folder
        self._apart = apart
        self._ledger = Ledger(folder / "ledger")
        self._job = Job(url=url, ledger=str(folder / "ledger"), files="", delay=DELAY, pause=PAUSE)

    async def run(self, kills: int) -> Found:
        """Have all work done while workers are killed, about one a second, and check what came of it."""
        async with open_checkpointer(self._url) as store:
            work = Work(store, THREADS)
            await work.begin(TURNS)
            began = time.monotonic()
            with Machines(MACHINES, self._folder, self._job, apart=self._apart) as machines:
                for _ in range(kills):
                    await asyncio.sleep(random.choice((0.1, 0.7, 1.0, 1.5)))
                    await work.post()
                    round_ = int((time.monotonic() - began) / WATCH)
                    watchers = {round_ % MACHINES, (round_ - 1) % MACHINES} if self._apart else set()
                    machines.kill_one(watchers)
                await work.finish(machines.said)
                for machine in machines.each:
                    await asyncio.to_thread(machine.drain)
            return await check_threads(store, work.texts, self._ledger.deeds(), machines.kills, self._folder / "end")


def tell(found: Found, bound: float) -> None:
    """Count and print what happened. No clock decides: `bound` is what the guides promise."""
    late = [seconds for seconds in found.recoveries if seconds > bound]
    slowest = max(found.recoveries, default=0.0)
    print(
        f"{found.turns} turns, {len(found.recoveries)} threads recovered, the last after {slowest:.1f} s; "
        f"{found.in_doubt} calls in doubt, {found.asked_again} requests and {found.notes_made_again} notes made again"
    )
    count("threads recovered", len(found.recoveries))
    count(f"threads recovered after more than {bound:.0f} s", len(late))
    count("calls told as in doubt", found.in_doubt)
    assert found.wrong == []
    assert slowest < PATIENCE


@pytest.mark.parametrize("store", [postgres, redis, s3])
async def test_workers_on_machines_of_their_own_that_are_killed_every_second_finish_all_and_repeat_nothing(
    store: Callable[[Path], AbstractContextManager[Site]], tmp_path: Path
) -> None:
    with store(tmp_path) as site:
        found = await Lab(site.url, tmp_path, apart=True).run(KILLS)
    tell(found, 35.0)


async def test_workers_on_one_machine_that_are_killed_every_second_are_replaced_at_once(tmp_path: Path) -> None:
    with postgres(tmp_path) as site:
        found = await Lab(site.url, tmp_path, apart=False).run(KILLS)
    tell(found, 5.0)
