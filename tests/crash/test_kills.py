"""A process killed while it writes: what was acknowledged is there, what was not is there whole or not at all."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from clew.checkpointers import open_checkpointer
from tests.crash.processes import FULL, STORES, Writers, url_of
from tests.crash.work import Ledger, check, go_on
from tests.crash.writer import Job
from tests.sampling import dice

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

KILLS = 200 if FULL else 12
IN_FLIGHT = 150 if FULL else 1
"""At least this many of them while an append is under way, started and not acknowledged; of a few, chance decides it."""
NEW_STORE_EVERY = 20
LONGEST = 0.06
"""Seconds a writer gets at most, from its first append on."""


class Outcome:
    """What a series of kills has come to."""

    def __init__(self) -> None:
        self.kills = 0
        self.in_flight = 0
        self.acknowledged = 0
        self.wrong: list[str] = []


def kill_one(writers: Writers, job: Job, ledger: Ledger, delay: float) -> None:
    """Start a writer, kill it this long after it began to write, and hear all it said."""
    writers.start(job)
    line = writers.hear()
    while not line.startswith("start "):
        ledger.feed(line)
        line = writers.hear()
    ledger.feed(line)
    time.sleep(delay)
    writers.kill(signal.SIGKILL)
    for line in writers.rest():
        ledger.feed(line)
    assert line == f"exit {-signal.SIGKILL}"


async def kill_many(writers: Writers, kind: str, folder: Path, count: int, sabotage: str = "") -> Outcome:
    """Kill this many, and look at the store after each; stops at the first one that did harm."""
    chance = dice(f"kills of {kind}")
    outcome = Outcome()
    ledger = Ledger()
    url = ""
    while outcome.kills < count and not outcome.wrong:
        if outcome.kills % NEW_STORE_EVERY == 0:
            ledger = Ledger()
            url = url_of(kind, folder / str(outcome.kills))
        job = Job(url=url, seed=chance.getrandbits(32), tasks=chance.choice([1, 4, 6, 6, 6]), sabotage=sabotage)
        kill_one(writers, job, ledger, chance.uniform(0, LONGEST))
        outcome.kills += 1
        outcome.in_flight += bool(ledger.flying)
        async with open_checkpointer(url) as store:
            outcome.wrong += await check(store, ledger)
            threads = [f"{chance.randrange(4)}-{chance.randrange(3)}" for _ in range(2)]
            outcome.wrong += await go_on(store, ledger, chance, threads)
        outcome.acknowledged += ledger.acknowledged
        ledger.acknowledged = 0
    return outcome


@pytest.mark.parametrize("kind", STORES)
async def test_a_kill_loses_nothing_acknowledged_and_leaves_no_half_append(kind: str, tmp_path: Path) -> None:
    with Writers.ready() as writers:
        outcome = await kill_many(writers, kind, tmp_path, KILLS)
    print(f"{kind}: {outcome.kills} kills, {outcome.in_flight} in flight, {outcome.acknowledged} acknowledged")
    assert outcome.wrong == []
    assert outcome.kills == KILLS
    assert outcome.in_flight >= IN_FLIGHT


@pytest.mark.parametrize("sabotage", ["acknowledge early", "append by halves"])
@pytest.mark.parametrize("kind", STORES)
async def test_the_kills_find_a_writer_that_breaks_the_promise(kind: str, sabotage: str, tmp_path: Path) -> None:
    with Writers.ready() as writers:
        outcome = await kill_many(writers, kind, tmp_path, 200, sabotage)
    assert any("missing" in wrong or "never written" in wrong for wrong in outcome.wrong)
