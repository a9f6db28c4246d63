"""The power cut at any moment, on a disk that keeps of the unsynced writes what it likes: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.disk import Everything, Nothing, Some, Survival
from tests.crash.power import Run, cut, open_image
from tests.crash.processes import FULL, STORES
from tests.sampling import dice

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

OPERATIONS = 90 if FULL else 45
POINTS = 100 if FULL else 4
"""Cuts after an acknowledgement, as many in the middle of something, and as many before a sync."""


def some_points(run: Run) -> set[int]:
    chance = dice(f"points of {run.kind}")
    return {place for places in run.points() for place in chance.sample(places, min(POINTS, len(places)))}


def outcomes(kind: str, chance: random.Random) -> list[Callable[[], Survival]]:
    """What a power cut may leave. Out of order only of a WAL, which ends at its first bad sum; files have their own test."""
    found: list[Callable[[], Survival]] = [Nothing, Everything, lambda: Some(chance, in_order=True)]
    return [*found, lambda: Some(chance, in_order=False)] if kind == "sqlite" else found


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("kind", STORES)
async def test_a_power_cut_loses_nothing_acknowledged(kind: str, tasks: int, tmp_path: Path) -> None:
    run = Run(kind, tmp_path, operations=OPERATIONS // tasks, tasks=tasks)
    assert run.faithful()
    images, wrong = await cut(run, some_points(run), outcomes(kind, dice(f"outcomes of {kind}")), tmp_path)
    print(f"{kind}, {tasks} at once: {images} images")
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
            disk.image(Some(chance, in_order=True), tmp_path / "between")
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
    _, wrong = await cut(second, some_points(second), outcomes(kind, chance), tmp_path)
    assert wrong == []


@pytest.mark.parametrize("tasks", [1, 3])
async def test_a_file_that_grew_before_all_of_its_bytes_arrived_keeps_what_was_acknowledged(
    tasks: int, tmp_path: Path
) -> None:
    """A last record with its whole length and a bad sum is damage to a file store, which never cuts what may have been
    acknowledged. A power cut can leave one: where the length reaches the disk before all sectors do. Then its thread is
    `Corrupt` and no other is; the acknowledged bytes are all there, and are the log again once that record is cut off.
    """
    run = Run("files", tmp_path, operations=OPERATIONS // tasks, tasks=tasks)
    chance = dice("survivors out of order")
    points = set(run.points()[2][:: 1 if FULL else 8])
    damaged = 0
    for place, disk, ledger in run.replay():
        if place not in points:
            continue
        image, sure = tmp_path / f"image-{place}", tmp_path / f"sure-{place}"
        disk.image(Some(chance, in_order=False), image)
        disk.image(Nothing(), sure)
        wrong = await open_image("files", image, ledger.copy(), chance)
        if wrong:
            damaged += 1
            assert all("Corrupt" in problem for problem in wrong), wrong
            assert sum("cannot be read" in problem for problem in wrong) <= len(ledger.flying)
            cut_back(image, sure)
            assert await open_image("files", image, ledger.copy(), chance) == []
        shutil.rmtree(image)
        shutil.rmtree(sure)
    print(f"files, {tasks} at once: {len(points)} images, {damaged} with a record to be cut by hand")


def cut_back(image: Path, sure: Path) -> None:
    """Cut each thread's file to the bytes that were synced, which must be there unchanged."""
    for file in image.glob("**/threads/*/*"):
        synced = sure / file.relative_to(image)
        acknowledged = synced.read_bytes() if synced.exists() else b""
        assert file.read_bytes().startswith(acknowledged)
        os.truncate(file, len(acknowledged))


@pytest.mark.parametrize("sabotage", ["sync no files", "sync no folders"])
@pytest.mark.parametrize("kind", STORES)
async def test_the_power_cuts_find_a_store_that_does_not_sync(kind: str, sabotage: str, tmp_path: Path) -> None:
    run = Run(kind, tmp_path, operations=12, sabotage=sabotage)
    after, *_ = run.points()
    _, wrong = await cut(run, set(after[-2:]), [Nothing], tmp_path)
    assert any("an acknowledged append is missing" in problem for problem in wrong)
    _, wrong = await cut(run, set(after[-2:]), [Everything], tmp_path)
    assert wrong == []
