"""`clew gc`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import open_checkpointer
from tests.cli.command_line import Samples, objects

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def _values(url: str) -> int:
    from datetime import timedelta

    async with open_checkpointer(url) as store:
        return len([digest async for digest in store.blobs(untouched_for=timedelta(0))])


async def test_what_a_deleted_thread_alone_reached_is_removed_and_counted(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for name in ("trip", "trip-b"):
        samples.clew("rm", name, "--yes")
    before = await _values(samples.url)
    (counted,) = objects(samples.clew("gc", "--grace", "0", "--dry-run", "--json"))
    assert await _values(samples.url) == before > 0
    (done,) = objects(samples.clew("gc", "--grace", "0", "--yes", "--json"))
    assert await _values(samples.url) == 0
    assert (done["deleted"], done["freed"]) == (counted["deleted"], counted["freed"]) == (before, counted["freed"])
    assert done["freed"] > 0


def test_by_default_nothing_of_the_last_day_goes(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.clew("rm", "trip", "--yes")
    run = samples.clew("gc")
    assert (run.returncode, run.stdout) == (0, "0 values removed of 0 that were not used for 1d: 0 B\n")


def test_a_short_grace_asks_first_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    asked, wrong = samples.clew("gc", "--grace", "1h"), samples.clew("gc", "--grace", "soon")
    assert (asked.returncode, wrong.returncode) == (2, 2)
    assert "--yes" in asked.stderr
    assert "--grace 'soon'" in wrong.stderr


def test_a_thread_that_cannot_be_read_keeps_everything_in_place(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_head("visa")
    run = samples.clew("gc", "--grace", "0", "--yes")
    assert (run.returncode, run.stdout) == (6, "")
