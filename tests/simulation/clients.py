"""Clients of a simulated store, the same for every store: processes that append, read, list, delete and close.

A client is a machine with one store and several tasks. Each task makes calls that the seed chooses. `History` notes what the
client was told. Each store's own runs (`work.py` in its folder) add calls that only they need, and faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.errors import ClewError, Conflict, MissingBlob, Unavailable, UsageError
from tests.simulation.history import Append, Broken, History, Read, texts
from tests.simulation.loop import EPOCH, Machine, SimulatedLoop

__all__ = ["Act", "Clients"]

Act = Callable[[Checkpointer, str], Coroutine[Any, Any, None]]
"""Something that a client does with a store and the thread of this name."""
EXPECTED = (Conflict, MissingBlob, Unavailable)
"""The errors that a client may be told, whatever happens to others and to the server."""


class Clients:
    """The clients of one run. `open_store` opens the store of a machine."""

    def __init__(self, loop: SimulatedLoop, history: History, open_store: Callable[[Machine], Checkpointer]) -> None:
        self.loop = loop
        self.dice = loop.dice
        self.history = history
        self.names = [f"t{number}" for number in range(self.dice.randint(1, 3))]
        deletions = self.dice.choice((0, 1, 6))
        self.acts: list[tuple[Act, int]] = [
            (self.append, 8),
            (self.append_many, 3),
            (self.read, 3),
            (self.list, 1),
            (self.delete, deletions),
        ]
        """What clients do, and how often compared with the others."""
        self.pace = 1.0
        """How many times longer than usual clients rest between two calls."""
        self.sizes: tuple[int, ...] = (0, 0, 0, 200, 300_000)
        self._open_store = open_store
        self._made = 0

    def number(self) -> int:
        """Return the next number, so that what is made with it is unlike all else."""
        self._made += 1
        return self._made

    async def work(self, machines: list[Machine], faults: Coroutine[Any, Any, None]) -> None:
        """Let a client work on each machine while faults happen. Returns when all have ended that are not dead. Raises
        `Broken` as soon as a call hangs or a machine runs in circles, and any error of a client that is not Clew's."""
        work = [self.loop.start(machine, self._client(machine)) for machine in machines]
        work.append(self.loop.start(self.loop.outside, faults))
        owners = [*machines, self.loop.outside]
        watch = self.loop.start(self.loop.outside, self.history.watch())
        while alive := [
            task for task, owner in zip(work, owners, strict=True) if not task.done() and not owner.is_dead
        ]:
            await asyncio.wait([*alive, watch], return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
        for task in work:
            if task.done():
                task.result()
        self._watch = watch

    def stop_watching(self) -> None:
        """Look no more whether calls hang."""
        self._watch.cancel()

    async def _client(self, machine: Machine) -> None:
        """One process: several tasks on one store, which is closed when they have ended, or before."""
        store = self._open_store(machine)
        tasks = [asyncio.create_task(self._task(store)) for _ in range(self.dice.randint(1, 4))]
        if self.dice.random() < 0.3:
            await asyncio.sleep(self.dice.uniform(0, 40) * self.pace)
        else:
            await asyncio.wait(tasks)
        await self.history.call("close", store.close())
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _task(self, store: Checkpointer) -> None:
        acts, weights = zip(*self.acts, strict=True)
        for _ in range(self.dice.randint(2, 8)):
            await asyncio.sleep(self.dice.choice((0.0, 0.01, 1.0, 5.0)) * self.dice.random() * self.pace)
            thread = self.dice.choice(self.names)
            work = asyncio.ensure_future(self.dice.choices(acts, weights)[0](store, thread))
            if self.dice.random() < 0.1:
                await asyncio.sleep(self.dice.choice((0.0, 0.01, 5.0)) * self.dice.random())
                work.cancel()
            await asyncio.wait([work])
            error = None if work.cancelled() else work.exception()
            if isinstance(error, UsageError):
                return  # the store was closed
            if error is not None and not isinstance(error, EXPECTED):
                raise error if not isinstance(error, ClewError) else Broken(f"a client was told {error!r}") from error

    # Calls

    async def append(self, store: Checkpointer, thread: str) -> None:
        """Append at the end that the store tells, and again with the same frames if the outcome is unknown."""
        log, at = await self.end(store, thread)
        append = self.new(thread, log, at)
        for _ in range(self.dice.choice((1, 2, 3))):
            try:
                await self.make(store, append)
                return
            except Unavailable:
                await asyncio.sleep(self.dice.uniform(0, 3))

    async def append_many(self, store: Checkpointer, thread: str) -> None:
        """Make several appends to one thread, none of which waits for the one before."""
        log, at = await self.end(store, thread)
        appends = []
        for _ in range(self.dice.randint(2, 4)):
            appends.append(self.new(thread, log, at))
            at += len(appends[-1].frames)
        results = await asyncio.gather(*[self.make(store, each) for each in appends], return_exceptions=True)
        if results[0] is None and not any(isinstance(each, (Unavailable, UsageError)) for each in results):
            others = [each for each in self.history.appends if each.thread == thread and each not in appends]
            alone = all(each.ended < appends[0].began for each in others)
            if alone and not self.history.deletions and any(results):
                raise Broken(f"appends of one caller overtook each other: {results}")

    async def read(self, store: Checkpointer, thread: str) -> None:
        began = self.loop.time()
        frames = await self.history.call(f"read {thread}", store.read(thread))
        self.loop.say("read %s", texts(frames))
        self.history.reads.append(Read(thread, frames, began, self.loop.time()))

    async def list(self, store: Checkpointer, thread: str) -> None:
        query = HeadQuery(prefix="t", limit=2, order="due" if len(self.history.appends) % 2 else "updated")

        async def heads() -> list[Head]:
            return [head async for head in store.heads(query)]

        found = await self.history.call("list", heads())
        self.loop.say("listed %s", [head.thread_id for head in found])
        if not all(map(query.matches, found)):
            raise Broken(f"a listing has heads that do not match {query}: {found}")

    async def check_queue(self, store: Checkpointer) -> None:
        """Check that the queue of the workers is exactly the threads whose head says so, while nobody writes."""
        query = HeadQuery(order="due")
        every = [head for name in self.names if (head := await store.head(name)) is not None]
        expected = sorted(filter(query.matches, every), key=query.position, reverse=True)
        if (found := [head async for head in store.heads(query)]) != expected:
            raise Broken(f"the queue is {found} and should be {expected}")

    async def delete(self, store: Checkpointer, thread: str) -> None:
        await self.history.delete(thread, store.delete(thread))

    async def end(self, store: Checkpointer, thread: str) -> tuple[str, int]:
        """Return the id of a thread's log and the number of its frames; for a thread that does not exist, a new id."""
        head = await self.history.call(f"head {thread}", store.head(thread))
        if head is None:
            return f"log{self.number()}", 0
        return head.log_id, head.frames

    def new(self, thread: str, log: str, at: int, refs: tuple[str, ...] = ()) -> Append:
        """Note a new append of one or more frames, each of which is unlike all others."""
        number = self.number()
        size = self.dice.choice(self.sizes)
        count = self.dice.choice((1, 1, 3))
        frames = tuple(f"{number}.{each}".encode().ljust(size, b".") for each in range(count))
        append = Append(thread, log, at, frames, refs, self.loop.time())
        self.history.appends.append(append)
        return append

    async def make(self, store: Checkpointer, append: Append) -> None:
        """Make the call of this append. Raises what the call raises."""
        head = self.head(append.thread, append.log, append.at + len(append.frames))
        call = store.append(append.thread, append.frames, at=append.at, head=head, refs=append.refs)
        await self.history.append(append, call)

    def head(self, thread: str, log: str, frames: int) -> Head:
        """Return a head for an append. Of three lengths of a log, one takes the thread out of the queue of the workers."""
        now = datetime.fromtimestamp(EPOCH + self.loop.time(), UTC)
        due = datetime.fromtimestamp(EPOCH + 60 * frames, UTC) if frames % 3 else None
        return Head(
            thread_id=thread, frames=frames, log_id=log, status="running", created_at=now, updated_at=now, due=due
        )

    async def read_all(self, store: Checkpointer) -> None:
        """Read every thread, which must be possible at once."""
        for name in self.names:
            await self.read(store, name)
