"""The labs on Temporal, each in a process of its own: `python -m tests.crash.lab.temporal_lab SCENARIO STORE FOLDER`.

Temporal's SDK aborts now and then while Python ends, and would take the process of the tests with it. The last line that a
scenario prints is what it counted.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from clew import Thread
from tests.crash.history_sites import Site, http, postgres
from tests.crash.lab.agent import prompt
from tests.crash.lab.lab import KILLS, Disturbance, Lab, killing, tell
from tests.crash.lab.ledger import Ledger
from tests.crash.lab.machines import Machines
from tests.crash.lab.temporal_work import TemporalWork
from tests.crash.lab.work import Work
from tests.crash.processes import FULL, PATIENCE
from tests.servers.running import ServerProcess
from tests.servers.temporal import temporal_on
from tests.tally import count, taken

STORES: dict[str, Callable[[Path], AbstractContextManager[Site]]] = {"postgres": postgres, "http": http}
AWAY = 10.0
"""Seconds for which a server is away."""
THREADS = 40 if FULL else 12
TIMES = 3 if FULL else 1
Scenario = Callable[[Lab, Site, ServerProcess], Awaitable[None]]


async def killed(lab: Lab, site: Site, temporal: ServerProcess) -> None:
    """Workers are killed every second: on machines of their own, or for a sample, which must not take long, on one. Those
    that wait for the lease of a dead one are killed too, and then others wait for it from the start."""
    tell(await lab.run(killing(KILLS, apart=FULL)), 35.0, patience=4 * PATIENCE)


async def killed_once(lab: Lab, site: Site, temporal: ServerProcess) -> None:
    """One worker is killed, and those on other machines are not."""

    async def disturb(machines: Machines, work: Work) -> None:
        await asyncio.sleep(6)
        machines.kill_one()

    tell(await lab.run(disturb, THREADS), 35.0)


async def left_over(lab: Lab, site: Site, temporal: ServerProcess) -> None:
    """A worker is killed after it has answered what it was asked, and while it works on what was posted meanwhile."""
    ledger = Ledger(Path(lab.job.ledger))

    async def asked(number: int) -> str:
        deadline = time.monotonic() + PATIENCE
        while not (found := [deed.life for deed in ledger.deeds() if deed.number == f"{number}"]):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        return found[0]

    async def disturb(machines: Machines, work: Work) -> None:
        await asked(0)
        text = prompt("lab-0", 3, "(posted)")
        await Thread.post(work.store, "lab-0", text, prompt_id="posted")
        work.texts["lab-0"][text] += 1
        life = await asked(1)
        machines.kill_one([place for place, machine in enumerate(machines.each) if machine.life != life])

    tell(await lab.run(disturb, 1, 0, delay=2.0), 15.0)


async def restarted(lab: Lab, site: Site, temporal: ServerProcess) -> None:
    """Temporal's server is killed, and is back ten seconds later with its data. A worker is killed meanwhile."""
    tell(await lab.run(_away(temporal.kill, temporal.start), THREADS), 45.0)


async def without_store(lab: Lab, site: Site, temporal: ServerProcess) -> None:
    """The store's server is killed, and is back ten seconds later with its data. A worker is killed meanwhile."""
    assert site.server is not None
    tell(await lab.run(_away(site.server.kill, site.server.start), THREADS), 45.0)


async def half_told(lab: Lab, site: Site, temporal: ServerProcess) -> None:
    """Workers die between the last append of a run and the completion of its activity."""

    async def disturb(machines: Machines, work: Work) -> None:
        for _ in range(60 if FULL else 10):
            await asyncio.sleep(0.5)
            machines.replace_dead()
            await work.post()
        machines.replace_all(dies=0.0)

    tell(await lab.run(disturb, THREADS, 2, dies=0.3, delay=0.1), 15.0)


SCENARIOS: dict[str, Scenario] = {
    "killed": killed,
    "killed-once": killed_once,
    "restarted": restarted,
    "without-store": without_store,
    "half-told": half_told,
    "left-over": left_over,
}


def _away(stop: Callable[[], None], start: Callable[[], None]) -> Disturbance:
    async def disturb(machines: Machines, work: Work) -> None:
        machines.is_store_away = True
        for _ in range(TIMES):
            await asyncio.sleep(2)
            await asyncio.to_thread(stop)
            count("times a server was away for 10 s")
            await asyncio.sleep(AWAY / 2)
            machines.kill_one()
            await asyncio.sleep(AWAY / 2)
            await asyncio.to_thread(start)
            await work.post()

    return disturb


async def main(scenario: str, store: str, folder: Path) -> None:
    address, temporal = temporal_on(folder, folder / "temporal.db")
    with STORES[store](folder) as site, temporal:
        lab = Lab(
            site.url,
            folder,
            apart=FULL and scenario.startswith("killed"),
            new_work=lambda store, threads: TemporalWork(store, threads, address),
        )
        lab.job = msgspec.structs.replace(lab.job, temporal=address)
        await SCENARIOS[scenario](lab, site, temporal)


if __name__ == "__main__":
    code = 0
    try:
        asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
    except BaseException:  # noqa: BLE001 - the process reports it and ends
        traceback.print_exc()
        code = 1
    print(msgspec.json.encode(taken()).decode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
