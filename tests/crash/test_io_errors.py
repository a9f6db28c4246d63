"""A disk that fails a single read, write or sync: the call is `Unavailable` or `Corrupt`, nothing acknowledged is lost,
and the same call succeeds when it is made again."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from clew.checkpointers import open_checkpointer
from clew.checkpointers.heads import thread_key
from tests import tally
from tests.crash.processes import ROOT, STORES, url_of
from tests.crash.strace import strace_program
from tests.crash.work import Ledger, check, go_on
from tests.crash.writer import Job
from tests.limits import PATIENCE
from tests.sampling import FULL, dice

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.crash]

OPERATIONS = 24
CALLS = (
    "pread64",
    "read",
    "pwrite64",
    "write",
    "fdatasync",
    "fsync",
    "ftruncate",
    "openat",
    "mmap",
    "fstat",
    "newfstatat",
)
"""What the two stores ask of the system for their files."""
TRIES = 60 if FULL else 4
"""How many places of each call are tried, if it is made more often than that."""


def paths_of(kind: str, folder: Path) -> list[Path]:
    """The files whose calls fail: the database and what SQLite keeps beside it, or the files of the three threads."""
    made = folder / "made/for/it"
    if kind == "sqlite":
        return [made / f"clew.db{suffix}" for suffix in ("", "-wal", "-shm")]
    space = made / blake3(b"").hexdigest()
    return [space / "threads" / key[:2] / key for key in (thread_key(f"0-{number}") for number in range(3))]


def traced(kind: str, folder: Path, log: Path, *options: str) -> list[str]:
    """Run a writer under strace, with these options for the calls on the store's files. Return what the writer said."""
    job = Job(
        url=url_of(kind, folder), seed=7, operations=OPERATIONS, reopen_after=8, checkpoint_pages=4, is_failing=True
    )
    only = [part for path in paths_of(kind, folder) for part in ("-P", str(path))]
    done = subprocess.run(
        [
            strace_program(), "-f", "-q", "-o", str(log), "-e", "signal=none", *only, *options,
            sys.executable, "-m", "tests.crash.writer", msgspec.json.encode(job).decode(),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def counted(kind: str, folder: Path) -> Counter[str]:
    """How often a run without errors makes each call."""
    log = folder / "calls"
    traced(kind, folder / "counted", log, "-e", f"trace={','.join(f'?{call}' for call in CALLS)}")
    lines = (line.split(maxsplit=1)[1] for line in log.read_text(encoding="ascii", errors="replace").splitlines())
    return Counter(line.partition("(")[0] for line in lines if "(" in line and not line.startswith("<"))


def is_in_wal_mode(path: Path) -> bool:
    """Whether the header of a database says that it has a write-ahead log."""
    return path.read_bytes()[18:20] == b"\2\2"


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_fails_once_harms_nothing_and_may_be_made_again(kind: str, call: str, tmp_path: Path) -> None:
    count = counted(kind, tmp_path)[call]
    chance = dice(f"errors of {call} on {kind}")
    places = sorted(chance.sample(range(1, count + 1), min(TRIES, count)))
    tally.count("system calls failed", len(places))
    for place in places:
        error = "ENOSPC" if call in ("pwrite64", "write") and chance.random() < 0.3 else "EIO"
        assert hasattr(errno, error)
        folder = tmp_path / str(place)
        said = traced(
            kind, folder, tmp_path / "log", "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={place}"
        )
        ledger = Ledger()
        for line in said:
            ledger.feed(line)
        where = f"{error} at call {place} of {count}"
        async with open_checkpointer(url_of(kind, folder)) as store:
            assert await check(store, ledger) == [], where
            assert await go_on(store, ledger, chance, [*ledger.settled, "another"]) == [], where
            assert await check(store, ledger) == [], where
        if kind == "sqlite":
            assert is_in_wal_mode(paths_of(kind, folder)[0]), where
