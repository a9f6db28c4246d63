"""A disk that fills up: the append that no longer fits is `Unavailable`, nothing stored is harmed, and the log goes on.
Deleting works on the full disk, and gives room back."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from clew.checkpointers import open_checkpointer
from tests.crash.processes import FULL, ROOT, STORES, Writers, url_of
from tests.crash.work import Ledger, check, go_on
from tests.crash.writer import Job
from tests.limits import PATIENCE
from tests.sampling import dice, sampled
from tests.servers.running import lacking

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

LIMITS = 40 if FULL else 6
LARGEST = {"sqlite": 300_000, "files": 12_000}


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


# A real disk, which is small

DISK = "24m"
WAYS = ("delete", "prune", "gc", "rm")


def on_small_disk(kind: str, folder: Path, *works: str) -> subprocess.CompletedProcess[str]:
    """Run `tests.crash.room_worker` once for each of `works`, one after the other, with the store on a disk of its own
    that is gone in the end. Return how the last run ended. The others must succeed, or be killed on purpose."""
    disk = folder / "disk"
    disk.mkdir()
    url = f"sqlite:///{disk}/clew.db" if kind == "sqlite" else f"file://{disk}/store"
    worker = f'"{sys.executable}" -m tests.crash.room_worker "{url}"'
    steps = [f'mount -t tmpfs -o size={DISK} tmpfs "{disk}" || exit 77']
    for work in works[:-1]:
        steps.append(f'{worker} {work} "{folder}/record"; [ $? = {137 if work.startswith("die") else 0} ] || exit 1')
    steps.append(f'{worker} {works[-1]} "{folder}/record"')
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    done = subprocess.run(
        ["unshare", *namespaces, "sh", "-c", "\n".join(steps)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare:" in done.stderr:
        lacking(f"no file system can be mounted here: {done.stderr}", install="a kernel setting that allows mounts")
    return done


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small file system, which Linux can")
@pytest.mark.parametrize(("kind", "way", "first"), sampled(product(STORES, WAYS, ["fill+", "fill "]), 16))
def test_deleting_works_on_a_full_disk_and_gives_room_back(kind: str, way: str, first: str, tmp_path: Path) -> None:
    done = on_small_disk(kind, tmp_path, *f"{first}{way}".split(" "))
    assert done.returncode == 0, done.stderr
    assert "bytes of room" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small file system, which Linux can")
@pytest.mark.parametrize("part", sampled(range(1, 12), 4))
def test_a_delete_that_is_killed_on_a_full_disk_leaves_no_half_of_a_thread(part: int, tmp_path: Path) -> None:
    done = on_small_disk("sqlite", tmp_path, "fill-loose", f"die:{part}", "look")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small file system, which Linux can")
def test_a_delete_for_which_there_is_no_room_at_all_says_how_much_it_needs(tmp_path: Path) -> None:
    done = on_small_disk("sqlite", tmp_path, "fill-loose", "steal", "delete")
    assert done.returncode == 0, done.stderr
