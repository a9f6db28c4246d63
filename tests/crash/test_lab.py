"""A fleet of workers on machines of their own, killed every second: every thread is finished, and nothing happens twice
unseen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.crash.history_sites import Site, postgres, redis, s3
from tests.crash.lab.lab import KILLS, Lab, killing, tell
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
