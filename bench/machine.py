"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import time
from pathlib import Path

from bench import peers
from bench.scale import scratch
from bench.show import micros
from clew.checkpointers.sqlite.connection import library

__all__ = ["facts"]

_SYNCS = 100


def facts() -> dict[str, str]:
    found = {
        "system": f"{platform.system()} {platform.release()}, {os.cpu_count()} cores{_processor()}",
        "python": platform.python_version(),
        "sqlite": f"{library()}; the floors: {sqlite3.sqlite_version}",
        "sync of 4 KB": micros(_sync_time()),
    }
    if hasattr(os, "getloadavg"):
        found["load"] = f"{os.getloadavg()[0]:.2f}"
    return found | peers.versions()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return f", {line.partition(':')[2].strip()}"
    return ""


def _sync_time() -> float:
    """The median time to append 4 KB to a file and have the disk confirm it."""
    sync = getattr(os, "fdatasync", os.fsync)
    times = []
    with scratch() as folder:
        file = os.open(folder / "sync", os.O_CREAT | os.O_WRONLY, 0o600)
        for _ in range(_SYNCS):
            start = time.perf_counter()
            os.write(file, bytes(4096))
            sync(file)
            times.append(time.perf_counter() - start)
        os.close(file)
    return statistics.median(times)
