"""The service that is attacked, in a process of its own, and the innocent tenant who works meanwhile."""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from clew.checkpointers.http.store import HTTPCheckpointer
from clew.testing.contract.builders import append
from tests.limits import PATIENCE
from tests.server.test_command import running

__all__ = ["ATTACKER", "Experience", "Target", "attacked", "work"]

ATTACKER, INNOCENT = "the-long-token-of-the-attacker", "the-long-token-of-the-innocent"


class Target:
    """A running service, and the connections that an attack has opened to it."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self.port = urlsplit(url).port or 0
        self._process = process
        self._opened = ExitStack()

    def connect(self, data: bytes = b"", *, buffer: int = 0) -> socket.socket:
        """Open a connection that stays open as long as the attack, and send these bytes on it. What the service refuses
        is part of the attack: no error is raised."""
        made = socket.socket()
        self._opened.callback(made.close)
        made.settimeout(PATIENCE)
        if buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        with suppress(ConnectionError):
            made.connect(("127.0.0.1", self.port))
            made.sendall(data)
        return made

    def ask(self, data: bytes) -> bytes:
        """Open a connection, send these bytes, and return the first bytes of the answer; empty if there is none."""
        made = self.connect(data)
        with suppress(ConnectionError):
            return made.recv(2**16)
        return b""

    def memory(self) -> int:
        """Return the most memory that the service had so far, in bytes."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        [line] = [line for line in lines if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    def is_running(self) -> bool:
        return self._process.poll() is None

    def release(self) -> None:
        """Close all connections of the attack."""
        self._opened.close()


@contextmanager
def attacked(folder: Path, *options: str) -> Iterator[Target]:
    """Run a service with a token for the attacker and one for the innocent tenant, each in a namespace of its own."""
    tokens = f"{ATTACKER}@attacker:read,write {INNOCENT}@innocent:read,write"
    with running("--store", f"sqlite:///{folder}/clew.db", "--no-access-log", *options, CLEW_SERVE_TOKENS=tokens) as (
        url,
        process,
    ):
        target = Target(url, process)
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop the service
        try:
            yield target
        finally:
            target.release()


class Experience(NamedTuple):
    """What the innocent tenant met with."""

    done: int
    """How many rounds of an append and a read succeeded."""
    median: float
    """Seconds of a round, at the median."""


async def work(target: Target, thread_id: str, rounds: int) -> Experience:
    """Append to a thread and read it, so many times, as the innocent tenant. Checks that what is read is what was written.
    Each round uses the store as programs do: with its retries."""
    took = []
    frames: list[bytes] = []
    async with HTTPCheckpointer(target.url, token=INNOCENT, timeout=60) as store:
        for number in range(rounds):
            began = time.perf_counter()
            frames.append(b"%d" % number)
            await append(store, thread_id, frames[-1], at=number)
            assert await store.read(thread_id) == frames
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0)
    return Experience(len(took), statistics.median(took))
