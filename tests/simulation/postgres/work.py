"""Runs of the simulated PostgreSQL: clients that append, read, delete and close, while the seed breaks what it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from blake3 import blake3

from clew.checkpointers import Checkpointer
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.errors import MissingBlob
from tests.simulation.clients import Clients
from tests.simulation.environment import simulated
from tests.simulation.history import TIMEOUT, Broken, History, Logs
from tests.simulation.loop import Machine
from tests.simulation.postgres.link import Network, WiredLoop
from tests.simulation.postgres.server import Server
from tests.simulation.postgres.tables import Tables
from tests.simulation.seeds import failure

__all__ = ["Run", "simulate"]

URL = "postgresql://clew@simulated/clew?application_name={}&connections={}&timeout={}"
AFTER = 90.0
"""Seconds after the last fault in which everything that is still on its way arrives."""


class Run:
    """One run: what happened, and what the clients were told."""

    def __init__(self, seed: int) -> None:
        self.loop = WiredLoop(seed)
        self.dice = self.loop.dice
        self.server = Server(self.loop)
        self.network = Network(self.loop, self.server)
        self.history = History(self.loop, self.network)
        self.clients = Clients(self.loop, self.history, self._open_store)
        self.clients.acts.append((self._blobs, 2))

    async def main(self) -> None:
        """Let clients work while faults happen, let everything come to an end, and compare."""
        self.network.rate = self.dice.choice((0.0, 0.05, 0.2))
        self.network.latency = self.dice.choice((0.0002, 0.003, 0.1))
        self.server.slowness = self.dice.choice((0.0005, 0.01, 0.3))
        machines = [self.loop.new_machine(f"m{number}") for number in range(self.dice.randint(1, 3))]
        await self.clients.work(machines, self._faults(machines))
        await asyncio.sleep(AFTER)
        self.clients.stop_watching()
        async with PostgresCheckpointer(URL.format("last", 8, TIMEOUT)) as store:
            await self.clients.read_all(store)
            await self.clients.check_queue(store)
        tables = self.server.tables
        self.history.check(_logs(tables), {row["digest"].hex() for row in tables.of("blobs")})

    def _open_store(self, machine: Machine) -> PostgresCheckpointer:
        return PostgresCheckpointer(URL.format(machine, self.dice.choice((1, 2, 8)), TIMEOUT))

    async def _blobs(self, store: Checkpointer, thread: str) -> None:
        """Put a blob, and append with it; or append with a blob that was never put, which is refused."""
        data = f"blob {self.clients.number()}".encode().ljust(self.dice.choice((0, 300_000)), b".")
        digest = blake3(data).hexdigest()
        is_put = self.dice.random() < 0.7
        if is_put:
            await self.history.call("put", store.put_blobs({digest: data}))
            self.history.blobs.add(digest)
            missing = await self.history.call("missing", store.missing_blobs([digest]))
            found = await self.history.call("get", store.get_blobs([digest]))
            if missing or found != {digest: data}:
                raise Broken(f"a blob that was put is not there: {digest}")
        append = self.clients.new(thread, *await self.clients.end(store, thread), refs=(digest,))
        try:
            await self.clients.make(store, append)
        except MissingBlob:
            if is_put:
                raise Broken(f"a blob that was put is missing: {digest}") from None
        else:
            if not is_put:
                raise Broken(f"an append without its blob was taken: {append}")

    # Faults

    async def _faults(self, machines: list[Machine]) -> None:
        for _ in range(self.dice.randint(0, 4)):
            await asyncio.sleep(self.dice.uniform(0, 12))
            fault = self.dice.choice((self._outage, self._freeze, self._partition, self._resets, self._stop))
            seconds = self.dice.choice((0.1, 3.0, 12.0, 40.0)) * self.dice.random()
            await fault(seconds, self.dice.choice(machines))
        self.network.rate = 0.0

    async def _outage(self, seconds: float, machine: Machine) -> None:
        self.server.stop()
        await asyncio.sleep(seconds)
        self.server.start()

    async def _freeze(self, seconds: float, machine: Machine) -> None:
        self.server.freeze()
        await asyncio.sleep(seconds)
        self.server.thaw()

    async def _partition(self, seconds: float, machine: Machine) -> None:
        self.network.part()
        await asyncio.sleep(seconds)
        self.network.heal()

    async def _resets(self, seconds: float, machine: Machine) -> None:
        self.network.reset_all()

    async def _stop(self, seconds: float, machine: Machine) -> None:
        """Freeze a client's process for a while, or kill it."""
        if self.dice.random() < 0.3:
            self.loop.kill(machine)
            self.history.forget(machine)
            self.network.leave(machine)
        else:
            self.loop.freeze(machine, seconds)


def _logs(tables: Tables) -> Logs:
    """Return the logs that the server has."""
    return {
        (row["thread_id"].decode(), row["log_id"].decode()): _frames(tables, row["id"], row["frames"])
        for row in tables.of("heads")
    }


def _frames(tables: Tables, thread: int, count: int) -> list[bytes]:
    frames = tables.rows.get(("frames", thread), {"data": {}})["data"]
    if sorted(frames) != list(range(count)):
        raise Broken(f"a log of {count} frames has the frames {sorted(frames)}")
    return [frames[place] for place in range(count)]


def simulate(seed: int, check: Callable[[Run], object] = lambda run: None) -> list[str]:
    """Run one seed, and return its trace. Raises `Broken`, with the end of the trace, if a promise was broken."""
    run = Run(seed)
    try:
        with run.network.replacing_libpq(), simulated(run.loop):
            run.loop.run(run.main())
        if run.loop.failures:
            raise Broken(f"errors that nobody was told: {run.loop.failures}")
    except AssertionError as error:
        raise Broken(failure("postgres", seed, error, run.loop.trace)) from error
    check(run)
    return run.loop.trace
