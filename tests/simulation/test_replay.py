"""A seed that fails can be replayed, and runs with different seeds simulate different things."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import agents, disk, objects, postgres, seeds
from tests.simulation.agents import work as agents_work
from tests.simulation.disk import work as disk_work
from tests.simulation.loop import SimulatedLoop
from tests.simulation.objects import work as objects_work
from tests.simulation.postgres import work as postgres_work

ROOT = Path(__file__).parents[2]
WORK = {agents: agents_work, disk: disk_work, objects: objects_work, postgres: postgres_work}


@pytest.mark.parametrize("simulation", WORK, ids=lambda package: package.__name__.rpartition(".")[2])
def test_a_seed_that_fails_names_the_command_that_replays_it(simulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimulatedLoop.run

    def fail(loop: SimulatedLoop, main: Any) -> None:
        run(loop, main)
        loop.failures.append("it fails on purpose")

    monkeypatch.setattr(SimulatedLoop, "run", fail)
    with pytest.raises(AssertionError, match="it fails on purpose") as failed:
        seeds.simulate_all(WORK[simulation].simulate, [seeds.FIRST + 5])
    first, *trace = str(failed.value).splitlines()
    command = re.search(r"replayed by `python (.*?)`", first)
    assert command is not None
    replayed = subprocess.run(
        [sys.executable, *command[1].split()], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert len(trace) >= 20
    assert replayed.stdout.splitlines()[-len(trace) :] == trace


def test_no_two_runs_and_no_two_parts_of_the_long_simulations_have_seeds_in_common(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first: list[int] = []
    for seed in (1, 2, 3, 999_999):
        monkeypatch.setattr(seeds, "SEED", seed)
        first += [seeds.long_seeds(part) for part in range(seeds.PARTS)]
        assert first[-1] > seed * 1000 + 1000, "the seeds of the short runs"
    assert all(later - earlier >= 1_000_000 for earlier, later in pairwise(first))
