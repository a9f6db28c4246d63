"""The store goes away while a fleet works on it, and workers die between their last append and what follows: the fleet
goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.crash.history_sites import Site, postgres, redis, s3
from tests.crash.lab.lab import Disturbance, Lab, tell
from tests.crash.lab.machines import Machines
from tests.crash.lab.work import Work
from tests.crash.processes import FULL
from tests.sampling import sampled
from tests.servers.postgres import PostgresServer
from tests.servers.running import Frozen
from tests.tally import count

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.anyio, pytest.mark.xdist_group("lab")]

AWAY = 10.0
"""Seconds for which the store is away."""
THREADS = 40 if FULL else 16
OUTAGES = 3 if FULL else 1


def outages(site: Site) -> Disturbance:
    """Return a disturbance: the store's server is killed, or frozen if it is PostgreSQL, and is back ten seconds later
    with its data. A worker is killed meanwhile."""

    async def disturb(machines: Machines, work: Work) -> None:
        machines.is_store_away = True
        for _ in range(OUTAGES):
            await asyncio.sleep(2)
            server = site.server
            assert server is not None
            frozen = Frozen(work.store, server.pid, timeout=0) if isinstance(server, PostgresServer) else None
            await asyncio.to_thread(server.kill if frozen is None else frozen.freeze)
            count("times a store was away for 10 s")
            await asyncio.sleep(AWAY / 2)
            machines.kill_one()
            await asyncio.sleep(AWAY / 2)
            await asyncio.to_thread(server.start if frozen is None else frozen.thaw)
            await work.post()

    return disturb


@pytest.mark.parametrize("store", sampled([postgres, redis, s3], 1))
async def test_a_store_that_is_away_for_ten_seconds_costs_time_and_nothing_else(
    store: Callable[[Path], AbstractContextManager[Site]], tmp_path: Path
) -> None:
    with store(tmp_path) as site:
        found = await Lab(site.url, tmp_path, apart=False).run(outages(site), THREADS)
    tell(found, 40.0)


@pytest.mark.parametrize("store", sampled([postgres, redis, s3], 1))
async def test_workers_that_die_between_the_last_append_of_a_run_and_what_follows_lose_nothing(
    store: Callable[[Path], AbstractContextManager[Site]], tmp_path: Path
) -> None:
    async def disturb(machines: Machines, work: Work) -> None:
        for _ in range(60 if FULL else 6):
            await asyncio.sleep(0.5)
            await work.post()
            machines.replace_dead()
        machines.replace_all(dies=0.0)

    with store(tmp_path) as site:
        lab = Lab(site.url, tmp_path, apart=False)
        found = await lab.run(disturb, THREADS, 2, dies=0.3, limits={"agent:lab": 10}, delay=0.1)
    tell(found, 5.0)
