"""An agent killed with SIGKILL at every point of its run, and run again: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from clew import Thread
from clew.checkpointers import open_checkpointer
from clew.log import Checkpoint
from tests.crash.agent_worker import TURNS

pytestmark = [pytest.mark.crash, pytest.mark.anyio]

FULL = os.environ.get("CLEW_CRASH") == "full"
POINTS = [
    *(f"{where}:{number}" for where in ("before-append", "after-append") for number in range(1, 56)),
    *(f"{where}:{number}" for where in ("before-effect", "after-effect") for number in range(1, TURNS + 1)),
    *(f"after-note:{number}" for number in range(1, TURNS // 2 + 1)),
    *(f"request:{number}" for number in range(1, TURNS + 2)),
]


def _url(kind: str, folder: Path) -> str:
    return f"sqlite:///{folder}/store/c.db" if kind == "sqlite" else f"file://{folder}/store/threads"


def _run(folder: Path, url: str, point: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    env = {**os.environ, "CLEW_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "tests.crash.agent_worker", str(folder), url, point]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


async def _state(url: str) -> Checkpoint:
    async with open_checkpointer(url) as store:
        return await Thread.load(store, "t")


async def _is_done(url: str) -> bool:
    async with open_checkpointer(url) as store:
        head = await store.head("t")
        return head is not None and head.status == "done"


def _lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_an_agent_killed_anywhere_and_run_again_ends_as_if_nothing_had_happened(
    kind: str, tmp_path: Path
) -> None:
    undisturbed = tmp_path / "undisturbed"
    done = _run(undisturbed, _url(kind, undisturbed), "")
    assert done.stdout == f"done {TURNS + 1} All is charged.\n", done.stderr
    wanted = await _state(_url(kind, undisturbed))
    killed = 0
    points = POINTS if FULL else random.Random(f"agent {kind}").sample(POINTS, 9)
    for number, point in enumerate(points):
        folder = tmp_path / str(number)
        url = _url(kind, folder)
        first = _run(folder, url, point)
        if first.returncode == 0:
            continue  # the run has fewer of these points
        assert first.returncode == -signal.SIGKILL, first.stderr
        killed += 1
        if not await _is_done(url):  # else it was killed right after its end, and to run it again is to ask again
            second = _run(folder, url, "")
            assert second.stdout == done.stdout, f"{point}: {second.stderr}"
        state = await _state(url)
        assert state.messages == wanted.messages, point
        assert (state.usage, state.cost_usd) == (wanted.usage, wanted.cost_usd), point
        charges = _lines(folder, "charges")
        assert len(charges) == len(set(charges)) == TURNS, f"{point}: a charge was lost or made twice"
        keys = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in _lines(folder, "notes")}
        assert all(line.endswith(keys[line.rpartition(" ")[0]]) for line in _lines(folder, "notes")), point
        requests = Counter(_lines(folder, "requests"))
        assert sum(requests.values()) - len(requests) == state.unaccounted <= 1, f"{point}: a response was bought twice"
        assert (folder / "files" / "notes.txt").read_text() == f"turn {TURNS - 1}"
    assert killed >= len(points) * 2 // 3
