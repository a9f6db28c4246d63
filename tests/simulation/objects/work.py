"""Runs of the simulated bucket: clients that append, read, delete, put blobs and collect garbage, while the seed breaks what
it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from blake3 import blake3

from clew.checkpointers import Checkpointer, HeadQuery
from clew.checkpointers.heads import thread_key
from clew.checkpointers.objects import base, blobs, clouds, queue, threads
from clew.checkpointers.objects.format import DEAD_SIZE
from clew.checkpointers.packed import log
from clew.errors import ClewError, MissingBlob
from clew.threads.ops.gc import gc
from tests.simulation.clients import Clients
from tests.simulation.environment import simulated
from tests.simulation.history import Broken, History, Logs
from tests.simulation.loop import Machine, SimulatedLoop
from tests.simulation.objects.link import Network
from tests.simulation.objects.server import Server
from tests.simulation.seeds import failure

__all__ = ["Run", "simulate"]

AFTER = 90.0
"""Seconds after the last fault in which everything that is still on its way arrives."""
GRACE = 60.0
"""Seconds for which garbage collection leaves a blob alone that was touched."""
LEFTOVER = 900.0
"""Seconds after which objects that nothing names are swept. A day in earnest."""
MOST_ATTEMPTS = 1500
"""The most requests of one machine in a second. Tens of them may be under way at once, each for less than a millisecond."""


class Run:
    """One run: what happened, and what the clients were told."""

    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(seed)
        self.dice = self.loop.dice
        self.server = Server(self.loop)
        self.network = Network(self.loop, self.server)
        self.history = History(self.loop, self.network, MOST_ATTEMPTS)
        self.clients = Clients(self.loop, self.history, lambda machine: self.network.store())
        self.clients.acts += [(self._replace_head, 1), (self._blobs, 4), (self._collect, self.dice.choice((0, 2, 8)))]
        self.clients.acts.append((self._race, self.dice.choice((0, 3))))
        self.clients.pace = self.dice.choice((1.0, 1.0, 8.0, 40.0))
        self.clients.sizes = (0, 0, 200, 3000)
        self._touched: dict[str, float] = {}
        """The blobs that were there when a call returned, each with the time when that call began."""

    async def main(self) -> None:
        """Let clients work while faults happen, let everything come to an end, and compare."""
        self.network.rate = self.dice.choice((0.0, 0.05, 0.2, 0.4))
        self.network.latency = self.dice.choice((0.0002, 0.02, 0.5, 3.0))
        self.server.throttled = self.dice.choice((0.0, 0.0, 0.1))
        machines = [
            self.loop.new_machine(
                f"m{number}",
                ahead=self.dice.choice((0.0, 1.0, -900.0, 5000.0)),
                steady=self.dice.choice((0.0, 1e6)),
            )
            for number in range(self.dice.randint(1, 3))
        ]
        await self.clients.work(machines, self._faults(machines))
        await asyncio.sleep(AFTER)
        self.clients.stop_watching()
        await self._compare()

    async def _compare(self) -> None:
        """Read everything through a new store at once. Then collect what is left over, and compare with what clients were
        told."""
        async with self.network.store() as store:
            await self.clients.read_all(store)
            await self.clients.check_queue(store)
            await asyncio.sleep(max(GRACE, LEFTOVER) + 60)
            await gc(store, grace=timedelta(seconds=GRACE))
            await store.delete_blobs([], untouched_for=timedelta(seconds=GRACE))
            logs: dict[tuple[str, str], list[bytes]] = {}
            for name in self.clients.names:
                if (head := await store.head(name)) is not None:
                    logs[name, head.log_id] = await store.read(name)
            needed = self._needed(logs)
            self.history.blobs = needed
            self.history.check(logs, set(await store.get_blobs(sorted(needed))))
            await self.clients.check_queue(store)
            await self._check_leftovers(store)

    def _needed(self, logs: Logs) -> set[str]:
        """Return the blobs that the appends in these logs refer to."""
        there = {frame for frames in logs.values() for frame in frames}
        return {ref for append in self.history.appends if append.frames[0] in there for ref in append.refs}

    async def _check_leftovers(self, store: base.BucketCheckpointer) -> None:
        """Check that the bucket holds nothing that no thread and no blob names."""
        named = set()
        queued = {thread_key(head.thread_id) async for head in store.heads(HeadQuery(order="due"))}
        for name in self.clients.names:
            named |= await store._threads.logs.pack_names(thread_key(name))
        for key, stored in self.server.objects.items():
            _, folder, *rest = key.split("/")
            if folder == "due" and rest[0] not in queued:
                raise Broken(f"a marker of a thread that is not in the queue is never deleted: {key}")
            if folder == "packs" and rest[-1] not in named:
                raise Broken(f"a pack that no thread lists is never swept: {key}")
            if folder == "data" and not await store._blobs.names(*rest):
                raise Broken(f"bytes that no blob names are never swept: {key}")
            if folder == "probe" or (folder in ("blobs", "threads") and len(stored.data) == DEAD_SIZE):
                raise Broken(f"a leftover is never swept: {key}")

    # Calls of clients

    async def _replace_head(self, store: Checkpointer, thread: str) -> None:
        """Replace the head alone: an append without frames."""
        end, at = await self.clients.end(store, thread)
        append = store.append(thread, [], at=at, head=self.clients.head(thread, end, at))
        await self.history.call(f"replace-head {thread}", append)

    async def _blobs(self, store: Checkpointer, thread: str) -> None:
        """Put one of a few blobs, look for it, and append with it; or append with a blob that was never put, which is
        refused."""
        if self.dice.random() < 0.2:
            return await self._refer(store, thread, blake3(f"{self.clients.number()}".encode()).hexdigest(), False)
        data = f"blob {self.dice.randint(0, 2)}".encode().ljust(self.dice.choice((0, 500)), b".")
        digest = blake3(data).hexdigest()
        await self._touch(digest, "put", store.put_blobs({digest: data}))
        if self.dice.random() < 0.5:
            found = await self.history.call(f"get {digest[:8]}", store.get_blobs([digest]))
            if found.get(digest, data) != data or (digest not in found and self._must_be_there(digest)):
                raise Broken(f"a blob that was put is not there: {digest}")
        if self.dice.random() < 0.3:
            missing = await self.history.call(f"missing {digest[:8]}", store.missing_blobs([digest]))
            if missing and self._must_be_there(digest):
                raise Broken(f"a blob that was put is missing: {digest}")
        if self.dice.random() < 0.3:
            await self._refer(store, thread, digest, True)
        return None

    async def _touch(self, digest: str, what: str, work: Coroutine[Any, Any, None]) -> None:
        began = self.loop.time()
        await self.history.call(f"{what} {digest[:8]}", work)
        self._touched[digest] = max(began, self._touched.get(digest, 0.0))

    def _must_be_there(self, digest: str) -> bool:
        """Return whether this blob was touched so lately that nobody may have deleted it. What two machines take for the
        bucket's time differs by some seconds, more if the bucket is slow."""
        return self.loop.time() - self._touched[digest] < GRACE - 20

    async def _refer(self, store: Checkpointer, thread: str, digest: str, is_put: bool) -> None:
        """Append with a ref to this blob."""
        append = self.clients.new(thread, *await self.clients.end(store, thread), refs=(digest,))
        try:
            await self.clients.make(store, append)
        except MissingBlob:
            if is_put and self._must_be_there(digest):
                raise Broken(f"a blob that was put is missing: {digest}") from None
        else:
            if not is_put:
                raise Broken(f"an append without its blob was taken: {append}")

    async def _collect(self, store: Checkpointer, thread: str) -> None:
        collected = await self.history.call("gc", gc(store, grace=timedelta(seconds=GRACE)))
        self.loop.say("%s", collected)

    async def _race(self, store: Checkpointer, thread: str) -> None:
        """Put a blob that no thread needs while it is deleted, once nobody has touched it for a while."""
        data = f"loose {self.dice.randint(0, 1)}".encode().ljust(self.dice.choice((0, 500)), b".")
        digest = blake3(data).hexdigest()
        await self._touch(digest, "put", store.put_blobs({digest: data}))
        await asyncio.sleep(GRACE + self.dice.choice((0.0, 5.0)))

        async def delete() -> None:
            deletion = store.delete_blobs([digest], untouched_for=timedelta(seconds=GRACE))
            await self.history.call(f"delete-blob {digest[:8]}", deletion)

        async def put() -> None:
            if self.dice.random() < 0.5:
                await self._until_dead(digest)
            else:
                await asyncio.sleep(self.dice.random() * self.dice.choice((4 * self.network.latency, 30.0)))
            await self._touch(digest, "put", store.put_blobs({digest: data}))
            await asyncio.sleep(self.dice.uniform(0, GRACE / 2))
            found = await self.history.call(f"get {digest[:8]}", store.get_blobs([digest]))
            if not found and self._must_be_there(digest):
                raise Broken(f"a blob that was put is not there: {digest}")

        for result in await asyncio.gather(delete(), put(), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _until_dead(self, digest: str) -> None:
        """Wait until a dead record stands in the place of this blob, or half a minute: the worst moment to put it."""
        for _ in range(100):
            if any(digest in key and len(stored.data) == DEAD_SIZE for key, stored in self.server.objects.items()):
                return
            await asyncio.sleep(min(0.3, self.network.latency / 2))

    # Faults

    async def _faults(self, machines: list[Machine]) -> None:
        for _ in range(self.dice.randint(0, 4)):
            await asyncio.sleep(self.dice.uniform(0, 12) * self.clients.pace)
            fault = self.dice.choice((self._outage, self._freeze, self._partition, self._stop))
            seconds = self.dice.choice((0.1, 3.0, 12.0, 40.0, 80.0)) * self.dice.random()
            await fault(seconds, self.dice.choice(machines))
        self.network.rate = self.server.throttled = 0.0
        self.network.latency = min(self.network.latency, 0.5)

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

    async def _stop(self, seconds: float, machine: Machine) -> None:
        """Freeze a client's process for a while, or kill it."""
        if self.dice.random() < 0.3:
            self.loop.kill(machine)
            self.history.forget(machine)
        else:
            self.loop.freeze(machine, seconds)


@contextmanager
def _small() -> Iterator[None]:
    """Make packs of a few frames and call blobs large that have a few bytes, so that short runs have many of both. What is
    swept after a day is swept after a quarter of an hour; nothing that is under way takes that long."""
    with ExitStack() as stack:
        for module, name, value in (
            (clouds, "PIECE", 3000),
            (threads, "TAIL", 2000),
            (threads, "REWRITTEN", 8000),
            (threads, "WHOLE", 4000),
            (blobs, "INLINE", 100),
            (base, "LEFTOVER", round(LEFTOVER * 1e6)),
            (queue, "LEFT_BEHIND", round(LEFTOVER * 1e6)),
            (base, "SWEEP_EVERY", 20.0),
            (blobs, "UNNAMED", 60.0),
            (log, "UNCOMMITTED", 60.0),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def simulate(seed: int, check: Callable[[Run], object] = lambda run: None) -> list[str]:
    """Run one seed, and return its trace. Raises `Broken`, with the end of the trace, if a promise was broken."""
    run = Run(seed)
    try:
        with _small(), simulated(run.loop):
            run.loop.run(run.main())
        if run.loop.failures:
            raise Broken(f"errors that nobody was told: {run.loop.failures}")
    except (AssertionError, ClewError) as error:
        raise Broken(failure("objects", seed, error, run.loop.trace)) from error
    check(run)
    return run.loop.trace
