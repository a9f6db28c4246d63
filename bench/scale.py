"""How much is measured, and where."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

__all__ = ["FULL", "QUICK", "Scale", "files_size", "own_cache", "progress", "scratch"]


class Scale(msgspec.Struct, frozen=True):
    """Sizes of the measurements. The limits are meant for the full scale."""

    turns: tuple[int, ...] = (50, 200, 1000)
    """Lengths of conversations."""
    opened: tuple[int, ...] = (1000, 10_000)
    """Lengths of conversations that are opened."""
    repeats: int = 5
    reads: int = 9
    """Interleaved reads in a repeat of the measurements that open and list."""
    sessions: int = 64
    session_turns: int = 50
    threads: int = 1000
    """How many threads a listing lists."""
    files: int = 10_000
    """Files in a folder that is snapshotted, and their bytes."""
    files_bytes: int = 500_000_000
    agent_turns: int = 30
    """Turns of an agent's run, and the files of its workspace with their bytes."""
    agent_files: int = 1000
    agent_files_bytes: int = 20_000_000
    model_seconds: float = 0.2
    """Seconds that a model takes to answer."""
    provider_turns: int = 30
    """Turns of a provider's program, by itself and through a session."""
    provider_events_turns: int = 1000
    """Turns of a thread to which a provider's events are added."""
    many_threads: int = 10_000
    """Threads of a store of which one page is listed; and turns of a thread of which one is read."""
    long_turns: int = 100_000
    queued: int = 200
    """Threads in the queue of a pool of workers."""


FULL = Scale()
QUICK = Scale(
    turns=(20, 50, 100),
    opened=(100, 400),
    repeats=2,
    reads=3,
    sessions=16,
    session_turns=10,
    threads=100,
    files=400,
    files_bytes=10_000_000,
    agent_turns=5,
    provider_turns=3,
    provider_events_turns=20,
    many_threads=2000,
    long_turns=1000,
    queued=20,
)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on a real disk, gone afterwards: in $CLEW_BENCH_DIR, else beside the current folder."""
    here = Path.cwd()
    beside = here.parent if os.access(here.parent, os.W_OK) else here
    with tempfile.TemporaryDirectory(prefix=".clew-bench-", dir=os.environ.get("CLEW_BENCH_DIR") or beside) as folder:
        yield Path(folder)


@contextmanager
def own_cache(path: Path) -> Iterator[None]:
    """What Clew remembers of a folder, beside what is measured and not in the user's own place."""
    before = os.environ.get("CLEW_CACHE")
    os.environ["CLEW_CACHE"] = str(path)
    try:
        yield
    finally:
        os.environ.pop("CLEW_CACHE")
        if before is not None:
            os.environ["CLEW_CACHE"] = before


def files_size(path: Path) -> int:
    """Bytes of a file with all files that share its name (a database and its WAL), or of all files in a folder."""
    found = path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.name}*")
    return sum(file.stat().st_size for file in found if file.is_file())


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
