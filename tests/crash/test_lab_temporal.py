"""A fleet of Temporal's workers, killed every second, or while the store or Temporal's server is away: every thread is
finished, and nothing happens twice unseen."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import msgspec
import pytest

from tests.crash.processes import ROOT
from tests.limits import PATIENCE
from tests.sampling import sampled
from tests.tally import count

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.xdist_group("lab on temporal")]

SCENARIOS = ("killed", "killed-once", "restarted", "without-store", "half-told", "left-over")
STORES = ("postgres", "http")


@pytest.mark.parametrize(("scenario", "store"), sampled(product(SCENARIOS, STORES), 2))
def test_workers_of_temporal_finish_all_and_repeat_nothing(scenario: str, store: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.lab.temporal_lab", scenario, store, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=8 * PATIENCE, check=False)
    *said, tally = ended.stdout.splitlines()
    print(*said, sep="\n")
    for what, number in msgspec.json.decode(tally, type=dict[str, int]).items():
        count(what, number)
    assert ended.returncode == 0, "\n".join([*said, ended.stderr[-8000:]])
