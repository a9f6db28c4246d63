"""Runs of the simulated PostgreSQL: clients that append, read, delete and close, while the seed breaks what it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from blake3 import blake3

from clew.checkpointers import Head, HeadQuery
from clew.checkpointers.postgres.store import PostgresCheckpointer
from clew.errors import ClewError, MissingBlob, Unavailable, UsageError
from tests.simulation.environment import simulated
from tests.simulation.loop import EPOCH, Machine
from tests.simulation.postgres.history import TIMEOUT, Append, Broken, Deletion, History, Read, texts
from tests.simulation.postgres.link import Network, WiredLoop
from tests.simulation.postgres.server import Server

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
        self.names = [f"t{number}" for number in range(self.dice.randint(1, 3))]
        self._deletions = self.dice.choice((0, 1, 6))
        """How often clients delete: an append is made 8 times as often as a deletion of 1."""
        self._made = 0

    async def main(self) -> None:
        """Let clients work while faults happen, let everything come to an end, and compare."""
        self.network.rate = self.dice.choice((0.0, 0.05, 0.2))
        self.network.latency = self.dice.choice((0.0002, 0.003, 0.1))
        self.server.slowness = self.dice.choice((0.0005, 0.01, 0.3))
        machines = [self.loop.new_machine(f"m{number}") for number in range(self.dice.randint(1, 3))]
        work = [self.loop.start(machine, self._client(machine)) for machine in machines]
        work.append(self.loop.start(self.loop.outside, self._faults(machines)))
        watch = self.loop.start(self.loop.outside, self.history.watch())
        while alive := [task for task in work if not task.done() and not self._is_dead(task, machines, work)]:
            await asyncio.wait([*alive, watch], return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
        for task in work:
            if task.done():
                task.result()
        await asyncio.sleep(AFTER)
        watch.cancel()
        await self._read_all()
        self.history.check(self.server.tables)

    def _is_dead(self, task: asyncio.Task[None], machines: list[Machine], work: list[asyncio.Task[None]]) -> bool:
        place = work.index(task)
        return place < len(machines) and machines[place].is_dead

    # Clients

    async def _client(self, machine: Machine) -> None:
        """One process: several tasks on one store, which is closed when they have ended, or before."""
        url = URL.format(machine, self.dice.choice((1, 2, 8)), TIMEOUT)
        store = PostgresCheckpointer(url)
        tasks = [asyncio.create_task(self._task(store)) for _ in range(self.dice.randint(1, 4))]
        if self.dice.random() < 0.3:
            await asyncio.sleep(self.dice.uniform(0, 40))
        else:
            await asyncio.wait(tasks)
        await self.history.call("close", store.close())
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _task(self, store: PostgresCheckpointer) -> None:
        for _ in range(self.dice.randint(2, 8)):
            await asyncio.sleep(self.dice.choice((0.0, 0.01, 1.0, 5.0)) * self.dice.random())
            thread = self.dice.choice(self.names)
            act = self.dice.choices(
                (self._append, self._append_many, self._read, self._list, self._delete, self._blobs),
                (8, 3, 3, 1, self._deletions, 2),
            )[0]
            work = asyncio.ensure_future(act(store, thread))
            if self.dice.random() < 0.1:
                await asyncio.sleep(self.dice.choice((0.0, 0.01, 5.0)) * self.dice.random())
                work.cancel()
            await asyncio.wait([work])
            if not work.cancelled() and isinstance(error := work.exception(), UsageError):
                return  # the store was closed
            if not work.cancelled() and error is not None and not isinstance(error, ClewError):
                raise error

    async def _append(self, store: PostgresCheckpointer, thread: str) -> None:
        """Append at the end that the store tells, and again with the same frames if the outcome is unknown."""
        log, at = await self._end(store, thread)
        append = self._new(thread, log, at)
        for _ in range(self.dice.choice((1, 2, 3))):
            try:
                await self._make(store, append)
                return
            except Unavailable:
                await asyncio.sleep(self.dice.uniform(0, 3))

    async def _append_many(self, store: PostgresCheckpointer, thread: str) -> None:
        """Make several appends to one thread, none of which waits for the one before."""
        log, at = await self._end(store, thread)
        appends = []
        for _ in range(self.dice.randint(2, 4)):
            appends.append(self._new(thread, log, at))
            at += len(appends[-1].frames)
        results = await asyncio.gather(*[self._make(store, each) for each in appends], return_exceptions=True)
        if results[0] is None and not any(isinstance(each, (Unavailable, UsageError)) for each in results):
            others = [each for each in self.history.appends if each.thread == thread and each not in appends]
            alone = all(each.ended < appends[0].began for each in others)
            if alone and not self.history.deletions and any(results):
                raise Broken(f"appends of one caller overtook each other: {results}")

    async def _end(self, store: PostgresCheckpointer, thread: str) -> tuple[str, int]:
        head = await self.history.call(f"head {thread}", store.head(thread))
        if head is None:
            self._made += 1
            return f"log{self._made}", 0
        return head.log_id, head.frames

    def _new(self, thread: str, log: str, at: int) -> Append:
        """Note a new append of one or more frames, each of which is unlike all others."""
        self._made += 1
        size = self.dice.choice((0, 0, 0, 200, 300_000))
        count = self.dice.choice((1, 1, 3))
        frames = tuple(f"{self._made}.{each}".encode().ljust(size, b".") for each in range(count))
        append = Append(thread, log, at, frames, (), self.loop.time())
        self.history.appends.append(append)
        return append

    async def _make(self, store: PostgresCheckpointer, append: Append) -> None:
        now = datetime.fromtimestamp(EPOCH + self.loop.time(), UTC)
        head = Head(
            thread_id=append.thread,
            frames=append.at + len(append.frames),
            log_id=append.log,
            status="running",
            created_at=now,
            updated_at=now,
        )
        call = store.append(append.thread, append.frames, at=append.at, head=head, refs=append.refs)
        await self.history.append(append, call)

    async def _read(self, store: PostgresCheckpointer, thread: str) -> None:
        began = self.loop.time()
        frames = await self.history.call(f"read {thread}", store.read(thread))
        self.loop.say("read %s", texts(frames))
        self.history.reads.append(Read(thread, frames, began, self.loop.time()))

    async def _list(self, store: PostgresCheckpointer, thread: str) -> None:
        async def heads() -> list[str]:
            return [head.thread_id async for head in store.heads(HeadQuery(prefix="t", limit=2))]

        self.loop.say("listed %s", await self.history.call("list", heads()))

    async def _delete(self, store: PostgresCheckpointer, thread: str) -> None:
        deletion = Deletion(thread, self.loop.time())
        self.history.deletions.append(deletion)
        try:
            await self.history.call(f"delete {thread}", store.delete(thread))
        finally:
            deletion.ended = self.loop.time()

    async def _blobs(self, store: PostgresCheckpointer, thread: str) -> None:
        """Put a blob, and append with it; or append with a blob that was never put, which is refused."""
        self._made += 1
        data = f"blob {self._made}".encode().ljust(self.dice.choice((0, 300_000)), b".")
        digest = blake3(data).hexdigest()
        is_put = self.dice.random() < 0.7
        if is_put:
            await self.history.call("put", store.put_blobs({digest: data}))
            self.history.blobs.add(digest)
            missing = await self.history.call("missing", store.missing_blobs([digest]))
            found = await self.history.call("get", store.get_blobs([digest]))
            if missing or found != {digest: data}:
                raise Broken(f"a blob that was put is not there: {digest}")
        log, at = await self._end(store, thread)
        append = self._new(thread, log, at)
        append.refs = (digest,)
        try:
            await self._make(store, append)
        except MissingBlob:
            if is_put:
                raise Broken(f"a blob that was put is missing: {digest}") from None
        else:
            if not is_put:
                raise Broken(f"an append without its blob was taken: {append}")

    async def _read_all(self) -> None:
        """Read every thread through a new store, which must be possible at once."""
        async with PostgresCheckpointer(URL.format("last", 8, TIMEOUT)) as store:
            for name in self.names:
                await self._read(store, name)

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


def simulate(seed: int, check: Callable[[Run], object] = lambda run: None) -> list[str]:
    """Run one seed, and return its trace. Raises `Broken`, with the end of the trace, if a promise was broken."""
    run = Run(seed)
    try:
        with run.network.replacing_libpq(), simulated(run.loop):
            run.loop.run(run.main())
        if run.loop.failures:
            raise Broken(f"errors that nobody was told: {run.loop.failures}")
    except AssertionError as error:
        lines = "\n".join(run.loop.trace[-60:])
        raise Broken(f"seed {seed}: {error}\n{lines}") from error
    check(run)
    return run.loop.trace
