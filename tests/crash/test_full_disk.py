"""A disk that fills up: the append that no longer fits is `Unavailable`, nothing stored is harmed, and the log goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.checkpointers import open_checkpointer
from tests.crash.processes import FULL, STORES, Writers, url_of
from tests.crash.work import Ledger, check, go_on
from tests.crash.writer import Job
from tests.sampling import dice

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

LIMITS = 40 if FULL else 6
LARGEST = {"sqlite": 1_000_000, "files": 12_000}


@pytest.mark.parametrize("kind", STORES)
async def test_a_full_disk_harms_nothing_stored_and_the_log_goes_on(kind: str, tmp_path: Path) -> None:
    chance = dice(f"limits of {kind}")
    stopped = 0
    with Writers.ready(quiet=True) as writers:
        for number in range(LIMITS):
            url = url_of(kind, tmp_path / str(number))
            ledger = Ledger()
            limit = chance.randrange(1000, LARGEST[kind])
            stopped += write_until_full(writers, Job(url=url, seed=number, operations=80, file_size=limit), ledger)
            async with open_checkpointer(url) as store:
                assert await check(store, ledger) == []
                assert await go_on(store, ledger, chance, [*ledger.settled, "another"]) == []
                assert await check(store, ledger) == []
    assert stopped > (LIMITS // 2 if FULL else 0)


def write_until_full(writers: Writers, job: Job, ledger: Ledger) -> bool:
    """Whether the limit stopped an append. The same append was then made again without a limit, and the writer went on."""
    writers.start(job)
    said = list(writers.rest())
    assert said.pop() == "exit 0"
    refused = [line.removeprefix("unavailable ") for line in said if line.startswith("unavailable ")]
    for line in said:
        ledger.feed(line)
    assert ledger.flying == {}
    assert all(f"ack {op}" in said for op in refused)
    return bool(refused)
