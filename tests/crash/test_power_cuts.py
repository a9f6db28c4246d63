"""The power cut at any moment, on a disk that keeps of the unsynced writes what it likes: nothing acknowledged is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from clew.checkpointers import open_checkpointer
from tests.crash.disk import Everything, Nothing, Some, Survival
from tests.crash.power import Run, cut
from tests.crash.processes import FULL, STORES, url_of
from tests.sampling import dice
from tests.sqlite_files import database
from tests.tally import count

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

OPERATIONS = 90 if FULL else 45
POINTS = 100 if FULL else 4
"""Cuts after an acknowledgement, as many in the middle of something, and as many before a sync."""


def some_points(run: Run) -> set[int]:
    chance = dice(f"points of {run.kind}")
    return {place for places in run.points() for place in chance.sample(places, min(POINTS, len(places)))}


def outcomes(chance: random.Random) -> list[Callable[[], Survival]]:
    """What a power cut may leave."""
    return [Nothing, Everything, lambda: Some(chance, in_order=True), lambda: Some(chance, in_order=False)]


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("kind", STORES)
async def test_a_power_cut_loses_nothing_acknowledged(kind: str, tasks: int, tmp_path: Path) -> None:
    run = Run(kind, tmp_path, operations=OPERATIONS // tasks, tasks=tasks)
    assert run.faithful()
    images, wrong = await cut(run, some_points(run), outcomes(dice(f"outcomes of {kind}")), tmp_path)
    print(f"{kind}, {tasks} at once: {images} images")
    count("states after a power cut", images)
    assert wrong == []
    assert images >= 24


@pytest.mark.parametrize("seed", range(8 if FULL else 2))
@pytest.mark.parametrize("kind", STORES)
async def test_a_power_cut_after_a_power_cut_loses_nothing_acknowledged(kind: str, seed: int, tmp_path: Path) -> None:
    """The second one while the first one's torn end is being repaired and written over."""
    chance = dice(f"twice {seed}")
    first = Run(kind, tmp_path / "first", operations=12, tasks=3)
    point = chance.choice(first.points()[2])
    for place, disk, ledger in first.replay():
        if place == point:
            disk.image(Some(chance, in_order=seed % 2 == 0), tmp_path / "between")
            second = Run(
                kind,
                tmp_path / "second",
                operations=6,
                tasks=3,
                seed=8,
                start=tmp_path / "between",
                ledger=ledger.copy(),
            )
    assert second.faithful()
    _, wrong = await cut(second, some_points(second), outcomes(chance), tmp_path)
    assert wrong == []


async def test_a_power_cut_on_a_store_that_was_left_in_delete_mode_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """As a copy by `VACUUM INTO` is, or a restored dump. In that mode a power cut can take back acknowledged appends."""
    left = tmp_path / "left"
    left.mkdir()
    async with open_checkpointer(url_of("sqlite", left)) as store:
        assert await store.head("a thread") is None
    file = left / "made" / "for" / "it" / "clew.db"
    with database(file) as db:
        assert db.execute("PRAGMA journal_mode = DELETE").get == "delete"
    run = Run("sqlite", tmp_path / "run", operations=OPERATIONS // 3, start=left)
    assert run.faithful()
    images, wrong = await cut(run, some_points(run), outcomes(dice("outcomes in delete mode")), tmp_path)
    count("states after a power cut", images)
    assert wrong == []
    assert images >= 24


@pytest.mark.parametrize("tasks", [1, 3])
async def test_a_file_that_grew_before_all_of_its_bytes_arrived_opens_at_the_last_whole_append(
    tasks: int, tmp_path: Path
) -> None:
    """A power cut can leave a last record with its whole length and only some of its sectors. The store does not count
    it, and goes on after the append before."""
    run = Run("files", tmp_path, operations=OPERATIONS // tasks, tasks=tasks)
    points = set(run.points()[2][:: 1 if FULL else 8])
    chance = dice("survivors out of order")
    images, wrong = await cut(run, points, [lambda: Some(chance, in_order=False)] * 3, tmp_path)
    print(f"files, {tasks} at once: {images} images")
    count("states after a power cut", images)
    assert wrong == []


@pytest.mark.parametrize("sabotage", ["sync no files", "sync no folders"])
@pytest.mark.parametrize("kind", STORES)
async def test_the_power_cuts_find_a_store_that_does_not_sync(kind: str, sabotage: str, tmp_path: Path) -> None:
    run = Run(kind, tmp_path, operations=12, sabotage=sabotage)
    after, *_ = run.points()
    _, wrong = await cut(run, set(after[-2:]), [Nothing], tmp_path)
    assert any("an acknowledged append is missing" in problem for problem in wrong)
    _, wrong = await cut(run, set(after[-2:]), [Everything], tmp_path)
    assert wrong == []
