"""The simulated server does what PostgreSQL does for the store: the contract of all stores holds on it, and the SQL that it
models is the SQL that the store sends."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import Any

import pytest

from clew.checkpointers.patience import TIMEOUT
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.testing import CheckpointerContract
from tests.simulation.environment import simulated
from tests.simulation.postgres.functions import PINNED, fingerprint
from tests.simulation.postgres.link import Network, WiredLoop
from tests.simulation.postgres.server import Server
from tests.simulation.promises import promises

URL = "postgresql://clew@simulated/clew?application_name={}"


class Silenced:
    """A store whose server can be frozen, as the contract wants it."""

    timeout = TIMEOUT
    answering: Collection[str] = ()

    def __init__(self, store: PostgresCheckpointer, server: Server) -> None:
        self.store = store
        self.freeze = server.freeze
        self.thaw = server.thaw


def keep(promise: str, fixture: str) -> None:
    """Run one test of the contract on the simulated server."""
    loop = WiredLoop(promise)
    numbers = count()

    async def run() -> None:
        server = Server(loop)
        opened: list[PostgresCheckpointer] = []

        def open_store(namespace: str = "") -> PostgresCheckpointer:
            """Every other store shares its connections; the rest stand apart, as in a process of their own."""
            opened.append(PostgresCheckpointer(URL.format(next(numbers) // 2), namespace))
            return opened[-1]

        with Network(loop, server).replacing_libpq():
            given: Any = open_store if fixture == "open_store" else Silenced(open_store(), server)
            await getattr(CheckpointerContract(), promise)(given)
            for store in opened:
                await store.close()

    with simulated(loop):
        loop.run(run())
    assert loop.failures == []


@pytest.mark.parametrize("promise", promises("open_store"))
def test_the_contract_holds_on_the_simulated_server(promise: str) -> None:
    keep(promise, "open_store")


@pytest.mark.parametrize("promise", promises("freezable_store"))
def test_every_call_to_the_simulated_server_ends_when_it_is_frozen(promise: str) -> None:
    keep(promise, "freezable_store")


def test_the_model_is_of_the_sql_that_the_store_sends() -> None:
    assert fingerprint() == PINNED, (
        "The SQL of the PostgreSQL store has changed. Bring tests/simulation/postgres/functions.py up to date, "
        "then PINNED in it."
    )
