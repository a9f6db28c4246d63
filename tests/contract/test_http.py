"""The whole contract over HTTP: a real uvicorn on 127.0.0.1, with memory, SQLite and PostgreSQL behind it."""

from __future__ import annotations

import itertools
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from clew.checkpointers import Checkpointer
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.server.auth import Token
from clew.testing import FreezableStore
from clew.testing.contract.silence import SilenceContract
from tests.sampling import FULL
from tests.server.serving import Running, a_token, serving
from tests.servers.postgres import running_postgres
from tests.servers.proxy import Proxy
from tests.servers.running import Frozen, ServerProcess, free_port
from tests.stores import SILENCE, NewStore, SilentNetwork, StoreContract

MOST_TESTS = 400
"""Each test is a tenant of its own, so that it finds an empty store: as many tokens as there may be tests."""


def secret(number: int) -> str:
    return f"the-token-of-tenant-{number}"


def tenants() -> tuple[Token, ...]:
    return tuple(a_token(secret(number), f"tenant-{number}") for number in range(MOST_TESTS))


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture(scope="module")
def before_memory() -> Iterator[Running]:
    with serving(tokens=tenants()) as running:
        yield running


@pytest.fixture(scope="module")
def before_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('served')}/clew.db", tokens=tenants()) as running:
        yield running


@pytest.fixture(scope="module")
def before_postgres() -> Iterator[Running]:
    with running_postgres(fsync="off") as server, serving(server.url(), tokens=tenants()) as running:
        yield running


class HTTPContract(StoreContract):
    @pytest.fixture
    def new_store(self, service: Running, numbers: Iterator[int]) -> NewStore:
        return partial(HTTPCheckpointer, service.url, token=secret(next(numbers)))

    @pytest.fixture
    async def unreachable_store(self) -> AsyncIterator[Checkpointer]:
        store = HTTPCheckpointer(f"http://127.0.0.1:{free_port()}", retries=1)
        yield store
        await store.close()


if FULL:

    @pytest.mark.crash
    class TestHTTPBeforeMemory(HTTPContract):
        @pytest.fixture
        def service(self, before_memory: Running) -> Running:
            return before_memory


class TestHTTPBeforeSQLite(HTTPContract):
    @pytest.fixture
    def service(self, before_sqlite: Running) -> Running:
        return before_sqlite


@pytest.mark.xdist_group("postgres")
class TestHTTPBeforePostgres(HTTPContract):
    @pytest.fixture
    def service(self, before_postgres: Running) -> Running:
        return before_postgres


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ServerProcess]]:
    """`clew serve` in a process of its own, with its address."""
    folder, port = tmp_path_factory.mktemp("frozen"), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "clew", "serve", "--port", str(port), "--no-access-log", "--no-token"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLEW_")}

    def is_up() -> bool:
        with urllib.request.urlopen(f"{url}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)

    command += ["--store", f"sqlite:///{folder}/clew.db"]
    with ServerProcess(command, folder / "log", is_up, env=environment) as running:
        yield url, running


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.xdist_group("http-silence")
class TestSilentServer(SilenceContract):
    @pytest.fixture
    async def freezable_store(
        self, process: tuple[str, ServerProcess], numbers: Iterator[int]
    ) -> AsyncIterator[FreezableStore]:
        url, running = process
        async with HTTPCheckpointer(url, f"{next(numbers)}", timeout=SILENCE) as store:
            yield Frozen(store, running.pid, timeout=SILENCE)


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.xdist_group("http-silence")
class TestSilentNetwork(SilenceContract):
    @pytest.fixture
    async def freezable_store(
        self, process: tuple[str, ServerProcess], numbers: Iterator[int]
    ) -> AsyncIterator[FreezableStore]:
        async with Proxy(("127.0.0.1", int(process[0].rpartition(":")[2]))) as proxy:
            url = f"http://127.0.0.1:{proxy.port}?timeout={SILENCE}"
            async with HTTPCheckpointer.from_url(url, f"{next(numbers)}") as store:
                yield SilentNetwork(store, proxy)
