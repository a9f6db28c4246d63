"""A process that gets no memory for a moment: the call is `Unavailable` or succeeds, nothing acknowledged is lost, nothing
is left locked, and the store goes on, in this process and in the next."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from clew.checkpointers import open_checkpointer
from clew.log import MessageAdded
from clew.messages import Text, User
from clew.testing.contract.builders import append
from clew.threads import Thread
from tests.crash.memory_worker import Report, Task, Whose
from tests.crash.processes import ROOT, STORES, Speaker, url_of
from tests.crash.work import Ledger, check, go_on
from tests.limits import PATIENCE
from tests.sampling import FULL, dice
from tests.servers.running import lacking
from tests.tally import count

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

LINES: list[tuple[str, Whose]] = [("sqlite", "lines"), ("files", "lines")]
CASES: list[tuple[str, Whose]] = [("sqlite", "library"), *(LINES if FULL else [])]
"""What is tried. Lines of the stores only in `make crash`: there are thousands, of which a sample shows little."""
TRIES = 1_000_000 if FULL else 40
"""How many places are tried in each case, if there are more."""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`allocations.c`, compiled."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        lacking("no C compiler for the library that fails allocations", install="cc, on Linux with glibc")
    library = tmp_path_factory.mktemp("shim") / "allocations.so"
    source = Path(__file__).with_name("allocations.c")
    built = subprocess.run([str(compiler), "-shared", "-fPIC", "-O1", "-o", library, source], capture_output=True)
    if built.returncode:
        lacking(f"allocations.c does not compile: {built.stderr.decode()}", install="glibc with its headers")
    return library


@contextmanager
def worker(whose: Whose, shim: Path) -> Iterator[Speaker]:
    with pytest.MonkeyPatch.context() as patch:
        if whose == "library":
            patch.setenv("LD_PRELOAD", str(shim))
        speaker = Speaker("tests.crash.memory_worker", whose)
    with speaker:
        yield speaker


def ask(speaker: Speaker, task: Task) -> Report:
    return msgspec.json.decode(speaker.ask(msgspec.json.encode(task).decode()), type=Report)


@pytest.mark.parametrize(("kind", "whose"), CASES)
@pytest.mark.parametrize("length", [1, 6])
async def test_a_call_without_memory_harms_nothing_and_may_be_made_again(
    kind: str, whose: Whose, length: int, shim: Path, tmp_path: Path
) -> None:
    chance = dice(f"memory of {kind}, {whose}, {length}")
    failed = 0
    with worker(whose, shim) as speaker:
        places = ask(speaker, Task(url_of(kind, tmp_path / "counted"), whose, 2**40, 2**40)).counted
        assert places > 500
        for place in sorted(chance.sample(range(1, places + 1), min(TRIES, places))):
            folder = tmp_path / str(place)
            report = ask(speaker, Task(url_of(kind, folder), whose, place, place + length - 1))
            assert report.wrong == [], f"number {place} of {places}"
            await check_in_a_new_process(kind, folder, report, chance)
            shutil.rmtree(folder)
            failed += report.failed
    print(f"{kind}, {whose}, {length} at once: {failed} calls failed")
    count("calls without memory", failed)
    assert failed


async def check_in_a_new_process(kind: str, folder: Path, report: Report, chance: random.Random) -> None:
    """This process has never had the store open."""
    ledger = Ledger()
    for line in report.said:
        ledger.feed(line)
    async with open_checkpointer(url_of(kind, folder)) as store:
        assert await check(store, ledger) == []
        assert await go_on(store, ledger, chance, [*ledger.settled, "one-more"]) == []
        assert await check(store, ledger) == []


# What does not fit


LIMIT = 32 * 2**20
"""Bytes of address space that a process has for itself, beyond what it needs to start."""

_READ = """
import asyncio, gc, resource, sys
import clew
from clew.checkpointers import open_checkpointer
from clew.errors import ClewError
from clew.threads import Thread

async def main(url, limit):
    async with open_checkpointer(url) as store:
        await store.head("huge")
        pages = int(open("/proc/self/statm").read().split()[0])
        size = pages * resource.getpagesize() + limit
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
        for call in (lambda: store.read("raw"), lambda: Thread.load(store, "huge")):
            try:
                await call()
            except ClewError as error:
                print(type(error).__name__, error, flush=True)
            else:
                print("it fits", flush=True)
            gc.collect()
        print(len(await store.read("raw", start=0, stop=1)), "frame can be read", flush=True)
        async with Thread.open(store, "small") as thread:
            print("and another thread opened", flush=True)
        await store.close()
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.parametrize("kind", STORES)
async def test_a_thread_that_does_not_fit_into_memory_is_named_with_the_way_out(kind: str, tmp_path: Path) -> None:
    url = url_of(kind, tmp_path)
    async with open_checkpointer(url) as store, Thread.open(store, "huge") as thread:
        for number in range(60):
            await thread.append(MessageAdded(User((Text(os.urandom(1_500_000).hex()),))))
            await append(store, "raw", os.urandom(1_500_000), at=number)
    done = subprocess.run(
        [sys.executable, "-c", _READ, url, str(LIMIT)],
        cwd=ROOT,
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},  # more would be room that is set aside and not used
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    *failed, part, other = done.stdout.splitlines()
    assert len(failed) == 2
    assert failed[0].startswith("Unavailable thread 'raw' does not fit into the memory")
    assert failed[1].startswith("Unavailable thread 'huge' does not fit into the memory")
    assert all("Give the process more memory" in line for line in failed)
    assert part == "1 frame can be read"
    assert other == "and another thread opened"
    assert done.stderr == ""


@pytest.mark.parametrize("kind", STORES)
async def test_a_process_that_gets_no_os_thread_is_told_so(kind: str, tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, threading\n"
        "from clew.checkpointers import open_checkpointer\n"
        "start, left = threading.Thread.start, [1]\n"
        "def fail(thread):\n"
        '    if not left[0]: raise RuntimeError("can\'t start new thread")\n'
        "    left[0] -= 1\n"
        "    start(thread)\n"
        "async def main():\n"
        "    async with open_checkpointer(sys.argv[1]) as store:\n"
        "        threading.Thread.start = fail\n"
        "        try: await store.head('t')\n"
        "        except Exception as error: print(type(error).__name__, error)\n"
        "        threading.Thread.start = start\n"
        "        print(await store.head('t'))\n"
        "asyncio.run(main())\n"
    )
    run = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    done = run([sys.executable, "-c", code, url_of(kind, tmp_path)])
    assert done.stderr == ""
    said, after = done.stdout.splitlines()
    assert said.startswith("Unavailable the operating system gave no OS thread for clew-")
    assert after == "None"
