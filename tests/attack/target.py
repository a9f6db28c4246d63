"""The service that is attacked, in a process of its own, and the innocent tenant who works meanwhile."""

from __future__ import annotations

import asyncio
import http.client
import os
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

from clew.checkpointers.http.protocol import encode_text
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.testing.contract.builders import append
from tests.limits import PATIENCE
from tests.server.test_command import running

__all__ = ["ATTACKER", "ATTACKERS", "Experience", "Probe", "Target", "attacked", "work"]

ATTACKER, INNOCENT = "the-long-token-of-the-attacker", "the-long-token-of-the-innocent"
ATTACKERS = [ATTACKER, *(f"{ATTACKER}-{number}" for number in range(2, 5))]
"""The tokens of the attacker, each for a namespace of its own."""


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

    def processor_time(self) -> float:
        """Return the seconds of processor time that the service has taken so far, on all its OS threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_running(self) -> bool:
        return self._process.poll() is None

    def release(self) -> None:
        """Close all connections of the attack."""
        self._opened.close()


@contextmanager
def attacked(folder: Path, *options: str) -> Iterator[Target]:
    """Run a service with the tokens of the attacker and one for the innocent tenant, each for a namespace of its own."""
    attackers = [f"{token}@attacker-{number}:read,write" for number, token in enumerate(ATTACKERS)]
    tokens = " ".join([*attackers, f"{INNOCENT}@innocent:read,write"])
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
    async with HTTPCheckpointer(target.url, token=INNOCENT, timeout=PATIENCE) as store:
        for number in range(rounds):
            began = time.perf_counter()
            frames.append(b"%d" % number)
            await append(store, thread_id, frames[-1], at=number)
            assert await store.read(thread_id) == frames
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0)
    return Experience(len(took), statistics.median(took))


class Probe:
    """Reads the head of the innocent tenant's thread inside the `with` block, again and again, on an OS thread of its own.
    Notes how long the service kept one request waiting while it worked on others.

    That is measured as the processor time that the service took between a request and its response, which does not
    depend on what else the machine does.
    """

    def __init__(self, target: Target, thread_id: str) -> None:
        self._target = target
        self._path = f"/v1/threads/{encode_text(thread_id)}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.waits: list[float] = []
        """The seconds of processor time for each request that was answered."""

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._target.port, timeout=PATIENCE)
        while not self._ended.is_set():
            before = self._target.processor_time()
            try:
                connection.request("GET", self._path, headers={"authorization": f"Bearer {INNOCENT}"})
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException):
                connection.close()  # the next request opens it again
                continue
            if response.status == 200:
                self.waits.append(self._target.processor_time() - before)
            self._ended.wait(0.01)
        connection.close()
