"""A fleet of workers on machines of their own, killed every second: every thread is finished, and nothing happens twice
unseen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.crash.history_sites import Site, postgres, redis, s3
from tests.crash.lab.lab import KILLS, Lab, killing, tell
from tests.crash.lab.machines import Machines
from tests.crash.lab.work import Work
from tests.crash.processes import FULL
from tests.sampling import sampled

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.anyio, pytest.mark.xdist_group("lab")]


@pytest.mark.parametrize("store", sampled([postgres, redis, s3], 1))
async def test_workers_on_machines_of_their_own_that_are_killed_every_second_finish_all_and_repeat_nothing(
    store: Callable[[Path], AbstractContextManager[Site]], tmp_path: Path
) -> None:
    with store(tmp_path) as site:
        found = await Lab(site.url, tmp_path).run(killing(KILLS))
    tell(found, 35.0)


async def test_workers_on_one_machine_that_are_killed_every_second_are_replaced_at_once(tmp_path: Path) -> None:
    with postgres(tmp_path) as site:
        found = await Lab(site.url, tmp_path, apart=False).run(killing(KILLS // 2 if FULL else KILLS, apart=False))
    tell(found, 5.0)


async def test_files_go_along_from_one_machine_to_another_and_back(tmp_path: Path) -> None:
    async def disturb(machines: Machines, work: Work) -> None:
        for place in (0, 1, 0, 2, 1, 0, 3) if FULL else (0, 1, 0):
            machines.leave_only(place)
            await work.wait_for_turns(3, machines.said)
        machines.leave_only(0, 1, 2, 3)

    with postgres(tmp_path) as site:
        found = await Lab(site.url, tmp_path, apart=False).run(disturb, 8, 28 if FULL else 12, delay=0.1)
    tell(found, 5.0)
