"""A long thread passes through the server, and never sits in its memory whole."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import httpx
import pytest

from clew.checkpointers import SQLiteCheckpointer
from clew.checkpointers.http.protocol import END, encode_text
from clew.testing.contract.builders import append
from tests.limits import PATIENCE
from tests.sampling import FULL
from tests.server.test_command import running

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.crash,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]

FRAMES = 100_000 if FULL else 20_000
SIZE = 4000
PER_APPEND = 2000
ALLOWED = 24 * 2**20
"""Bytes that the server may take on top of what it takes for a short thread: a third of the shorter one."""


def peak(pid: int) -> int:
    """The most memory that this process had so far, in bytes."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


async def test_a_long_thread_is_never_in_memory_whole(tmp_path: Path) -> None:
    path = tmp_path / "clew.db"
    async with SQLiteCheckpointer(path) as store:
        await append(store, "short", b"frame")
        for at in range(0, FRAMES, PER_APPEND):
            await append(store, "long", *[os.urandom(8) + bytes(SIZE - 8)] * PER_APPEND, at=at)
    with running("--store", f"sqlite:///{path}", "--no-token") as (url, process):
        httpx.get(f"{url}/v1/threads/{encode_text('short')}/frames").raise_for_status()
        before = peak(process.pid)
        received, end = 0, b""
        with httpx.stream("GET", f"{url}/v1/threads/{encode_text('long')}/frames", timeout=PATIENCE) as answer:
            for number, piece in enumerate(answer.iter_raw()):
                received, end = received + len(piece), (end + piece)[-4:]
                if number == 10:
                    time.sleep(1)  # a reader that is slow holds the server back, and fills no memory there
        assert (received, end) == (FRAMES * (SIZE + 4) + 4, END)
        assert peak(process.pid) - before < ALLOWED
