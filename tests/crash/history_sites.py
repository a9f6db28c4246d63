"""Real stores for processes that are killed and cut off while they use them: each with its URL and its server."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from tests.servers.mariadb import running_mariadb
from tests.servers.opensearch import shared_node
from tests.servers.postgres import running_postgres
from tests.servers.redis import a_server
from tests.servers.running import ServerProcess, free_port
from tests.servers.seaweedfs import BUCKET, KEY_ID, SECRET, seaweedfs

__all__ = ["OPEN_SITES", "Crashing", "Site", "sqlite"]

TIMEOUT = 2
"""Seconds without progress after which calls end: less than the network is silent for at times."""
_numbers = count()


class Crashing(Protocol):
    """A server that keeps what it has acknowledged when it is killed."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


class Site(NamedTuple):
    """A store that nobody has used yet. `port` is where its server listens; None if it has no server."""

    url: str
    port: int | None = None
    server: Crashing | None = None

    def url_through(self, port: int) -> str:
        """Return the URL by which the store is reached through a proxy on this port."""
        return self.url.replace(f"127.0.0.1:{self.port}", f"127.0.0.1:{port}")


@contextmanager
def sqlite(folder: Path) -> Iterator[Site]:
    yield Site(f"sqlite:///{folder}/clew.db")


@contextmanager
def files(folder: Path) -> Iterator[Site]:
    yield Site(f"file://{folder}/store")


@contextmanager
def postgres(folder: Path) -> Iterator[Site]:
    with running_postgres() as server:
        yield Site(server.url(timeout=str(TIMEOUT)), server.port, server)


@contextmanager
def mysql(folder: Path) -> Iterator[Site]:
    with running_mariadb() as server:
        yield Site(server.url(timeout=str(TIMEOUT)), server.port, server)


@contextmanager
def redis(folder: Path) -> Iterator[Site]:
    with a_server("redis", folder / "redis") as server:
        yield Site(f"{server.url}?timeout={TIMEOUT}", server.port, server.process)


@contextmanager
def valkey(folder: Path) -> Iterator[Site]:
    with a_server("valkey", folder / "valkey") as server:
        yield Site(f"{server.url}?timeout={TIMEOUT}", server.port, server.process)


@contextmanager
def s3(folder: Path) -> Iterator[Site]:
    (folder / "weed").mkdir()
    with pytest.MonkeyPatch.context() as patch, seaweedfs(folder / "weed") as server:
        patch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        url = f"s3://{BUCKET}/histories?endpoint={server.endpoint}&region=us-east-1&timeout={TIMEOUT}"
        yield Site(url, int(server.endpoint.rpartition(":")[2]), server.process)


@contextmanager
def opensearch(folder: Path) -> Iterator[Site]:
    node = shared_node()
    yield Site(f"{node.url}/histories-{next(_numbers)}?timeout={5 * TIMEOUT}", node.port, node.process)


@contextmanager
def http(folder: Path) -> Iterator[Site]:
    port = free_port()
    command = [sys.executable, "-m", "clew", "serve", "--port", str(port), "--no-access-log", "--no-token"]
    command += ["--store", f"sqlite:///{folder}/clew.db"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLEW_")}

    def is_up() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)

    with ServerProcess(command, folder / "serve.log", is_up, env=environment) as server:
        yield Site(f"http://127.0.0.1:{port}?timeout={TIMEOUT}", port, server)


OPEN_SITES = [
    sqlite,
    files,
    pytest.param(postgres, marks=pytest.mark.xdist_group("postgres")),
    pytest.param(mysql, marks=pytest.mark.xdist_group("mysql")),
    pytest.param(redis, marks=pytest.mark.xdist_group("redis")),
    pytest.param(valkey, marks=pytest.mark.xdist_group("redis")),
    pytest.param(s3, marks=pytest.mark.xdist_group("seaweedfs")),
    pytest.param(opensearch, marks=pytest.mark.xdist_group("opensearch")),
    http,
]
"""How each kind of store is opened, as parameters of a test."""
