"""Many machines on one store, killed at random: nothing acknowledged is lost, and no thread is run by two at once."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from clew import Thread
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.log import LeaseTaken, MessageAdded, StateSet
from clew.log.codec import decode_frame
from clew.messages import user
from tests.crash.fleet_worker import TURNS
from tests.crash.processes import FULL, ROOT
from tests.limits import PATIENCE
from tests.server.serving import a_token, serving
from tests.servers.postgres import running_postgres
from tests.servers.redis import a_server
from tests.tally import count

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.anyio]

WORKERS, THREADS, KILLS = (8, 200, 50) if FULL else (3, 16, 3)
TOKEN = "a-token-of-the-fleet"


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    with running_postgres() as server:
        yield server.url()


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    with a_server("valkey", folder / "redis") as server:
        yield server.url


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with serving(f"sqlite:///{folder}/clew.db", tokens=(a_token(TOKEN, "fleet"),)) as running:
        yield running.url


class Fleet:
    """The workers, each started again when it is killed."""

    def __init__(self, folder: Path, url: str) -> None:
        self._command = [sys.executable, "-m", "tests.crash.fleet_worker", str(folder), url, str(THREADS)]
        self._env = {**os.environ, "CLEW_TOKEN": TOKEN}
        self._processes = [self._start() for _ in range(WORKERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT, env=self._env, stderr=subprocess.PIPE)

    def kill_one(self) -> None:
        place = random.randrange(WORKERS)
        self._processes[place].kill()
        count("times SIGKILL")
        self._processes[place].communicate()
        self._processes[place] = self._start()

    def finish(self) -> None:
        for process in self._processes:
            _, said = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, said.decode()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("store", [postgres, redis, served])
async def test_a_fleet_that_is_killed_at_random_loses_nothing_and_repeats_nothing(
    store: Callable[[Path], AbstractContextManager[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_TOKEN", TOKEN)
    log = tmp_path / "log"
    log.mkdir()
    with store(tmp_path) as url:
        await _ask_all(url)
        fleet = Fleet(log, url)
        try:
            for _ in range(KILLS):
                time.sleep(1.0)
                fleet.kill_one()
            assert len(set(_lines(log, "effects"))) < THREADS * TURNS or not FULL, "there was no work left to disturb"
            fleet.finish()
        finally:
            fleet.end()
        async with open_checkpointer(url) as opened:
            for number in range(THREADS):
                await _check_thread(opened, f"thread-{number}", _lines(log, "acknowledged"))
    effects = Counter(_lines(log, "effects"))
    assert effects == Counter(f"thread-{number} {turn}" for number in range(THREADS) for turn in range(TURNS))


async def _ask_all(url: str) -> None:
    """The work there is: threads with a prompt that nobody has answered yet."""
    async with open_checkpointer(url) as store:
        for number in range(THREADS):
            async with Thread.open(store, f"thread-{number}") as thread:
                await thread.append(MessageAdded(user("Do all of it.")))


async def _check_thread(store: Checkpointer, thread_id: str, acknowledged: list[str]) -> None:
    state = await Thread.load(store, thread_id)
    assert (state.status, state.turns) == ("done", TURNS + 1)
    told = [int(line.rpartition(" ")[2]) for line in acknowledged if line.rpartition(" ")[0] == thread_id]
    assert not told or max(told) <= state.turns
    holder = ""
    for number, data in enumerate(await store.read(thread_id)):
        for entry in decode_frame(data, thread_id, number).entries:
            if isinstance(entry, LeaseTaken):
                holder = re.findall(r"process (\d+)", entry.owner)[0]
            elif isinstance(entry, StateSet) and entry.key == "pid":
                assert str(entry.value) == holder, f"{thread_id}: {entry.value} wrote while {holder} held the lease"


def _lines(folder: Path, kind: str) -> list[str]:
    return [line for path in folder.glob(f"*.{kind}") for line in path.read_text().splitlines()]
