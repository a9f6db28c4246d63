"""The simulated store: one memory store that all machines share, behind a network that delays, loses and reorders.

Each process has a `SimulatedStore`. A call travels to the server, takes effect there at a moment of its own, and its
answer travels back: the caller may be frozen or dead by then. What was appended is decoded as it takes effect, so that
the rest of the simulation knows at each moment what is on record, and who wrote it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from clew._runtime.aio import settle
from clew.checkpointers import Checkpointer, Head, HeadQuery, MemoryCheckpointer
from clew.checkpointers.patience import Patience
from clew.errors import ClewError, Conflict, Unavailable
from clew.log import Fold, LeaseTaken, Logged, decode_frame
from clew.threads.leases import LEASE_TIME
from tests.simulation.loop import EPOCH, Machine, SimulatedLoop, current, current_machine

__all__ = ["LASTS", "TIMEOUT", "Lease", "Record", "Server", "SimulatedStore"]

TIMEOUT = 10.0
"""Seconds after which a call without an answer raises `Unavailable`, as in the stores of Clew."""
LASTS = LEASE_TIME.total_seconds()
FATES = (
    "lost",  # the call never arrives, and nothing is heard of it
    "answer lost",  # the call takes effect, and nothing is heard of it
    "refused",  # the call is answered with `Unavailable` at once, and nothing was done
    "cut",  # the call takes effect, and is answered with `Unavailable`
    "late",  # the call arrives after a long while
    "answer late",  # the answer arrives after a long while
)

T = TypeVar("T")


class Lease(msgspec.Struct, eq=False):
    """A lease that a process has taken, as that process may see it."""

    token: str
    machine: Machine
    by_takeover: bool
    taken: float
    until: float = 0.0
    """Until when the process certainly has the lease, by the clock of its machine."""
    proved: float = -1.0
    """When the process last learnt, while the lease certainly lasted, that an append of its own was accepted."""


class Record(msgspec.Struct, eq=False):
    """What the store has of one thread: its entries, the state that they fold to, and the lease that holds it."""

    fold: Fold
    entries: list[Logged] = []
    holder: Lease | None = None
    is_free: bool = True
    """Whether the lease was given back."""


class Server:
    """The store's side. `rate` is the share of calls with a fate of their own, `latency` how long others take at most.

    `on_append` is called with the process whose append takes effect, before the answer is on its way; `on_conflict` with
    a process that was told that its append comes too late, and with the thread.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.dice = loop.dice
        self.memory = MemoryCheckpointer()
        self.rate = 0.0
        self.latency = 0.01
        self.is_away = False
        self.cut_off: dict[Machine, None] = {}
        """The machines that cannot reach the store, and that it cannot reach."""
        self.records: dict[str, Record] = {}
        self.leases: dict[tuple[Machine, str], Lease] = {}
        """For each process and thread, the lease that the process took last."""
        self.clocks: dict[Machine, list[tuple[float, float]]] = {}
        """For each machine, since when its clock is how far ahead."""
        self.acknowledged: list[tuple[str, int, tuple[bytes, ...]]] = []
        self.broken = ""
        """The first promise that was broken here, where no caller could be told."""
        self.on_append: Callable[[Machine], object] = lambda machine: None
        self.on_conflict: Callable[[Machine, str], object] = lambda machine, thread_id: None
        self._outside = copy_context()
        self._outside.run(current.set, loop.outside)

    def set_clock(self, machine: Machine, ahead: float) -> None:
        machine.ahead = ahead
        self.clocks.setdefault(machine, []).append((self.loop.time(), ahead))

    def send(self, machine: Machine, what: str, work: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Let a call travel to the server and its answer back. The future never ends if one of them is lost."""
        dice, answer = self.dice, self.loop.create_future()
        fate = dice.choice(FATES) if dice.random() < self.rate else ""
        there, back = (dice.random() * self.latency for _ in range(2))
        there += dice.uniform(0, 40) if fate == "late" else 0.0
        back += dice.uniform(0, 25) if fate == "answer late" else 0.0
        context = copy_context()

        def arrive() -> None:
            if fate == "lost" or machine in self.cut_off:
                self.loop.say("the %s of %s is lost", what, machine)
            elif fate == "refused" or self.is_away:
                respond(None, Unavailable("the simulated store is away"))
            else:
                self.loop.create_task(serve(), context=self._outside)

        async def serve() -> None:
            try:
                result, error = await work(), None
            except ClewError as failure:
                result, error = None, failure
            if fate == "cut":
                error = Unavailable("the connection to the simulated store broke")
            if fate != "answer lost" and machine not in self.cut_off:
                respond(result, error)

        def respond(result: Any, error: Exception | None) -> None:
            self.loop.call_later(
                back, lambda: self.loop.call_soon(take, result, error, context=context), context=self._outside
            )

        def take(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        if fate:
            self.loop.say("%s: %s", what, fate)
        self.loop.call_later(there, arrive, context=self._outside)
        return answer

    async def append(
        self, machine: Machine, takeover: bool, thread_id: str, frames: list[bytes], at: int, head: Head, refs: Any
    ) -> None:
        """Carry out an append of this process, and note what it changes."""
        before = await self.memory.head(thread_id)
        await self.memory.append(thread_id, frames, at=at, head=head, refs=refs)
        record = self.records.setdefault(thread_id, Record(Fold(), []))
        if before is None or before.frames == at:  # else it was written before
            new = [
                entry
                for place, frame in enumerate(frames)
                for entry in decode_frame(frame, thread_id, at + place).entries
            ]
            for entry in new:
                if isinstance(entry, LeaseTaken):
                    self._take(record, machine, takeover, thread_id, entry.token)
            record.fold.push(new)
            record.entries += new
            self._check_writer(record, machine, thread_id, head)
            record.is_free = head.lease is None
            kinds = " ".join(type(entry).__name__ for entry in new)
            self.loop.say("%s writes %s at %d: %s", machine, thread_id, at, kinds or "its lease")
            self.on_append(machine)

    def _take(self, record: Record, machine: Machine, takeover: bool, thread_id: str, token: str) -> None:
        held, now = record.holder, self.loop.time()
        if held is not None and held.token == token:
            return
        is_live = held is not None and not record.is_free and not held.machine.is_dead and held.machine is not machine
        if held is not None and is_live and not takeover and now < held.until:
            self.breaks(
                f"{machine} takes {thread_id} from {held.machine}, which has it for {held.until - now:.3f} s more"
            )
        record.holder = self.leases[machine, thread_id] = Lease(token, machine, takeover, now)
        self.loop.say("%s takes %s", machine, thread_id)

    def _check_writer(self, record: Record, machine: Machine, thread_id: str, head: Head) -> None:
        holder = record.holder
        if holder is None or holder.machine is not machine or (head.lease and head.lease.token != holder.token):
            self.breaks(f"{machine} writes to {thread_id}, which {holder and holder.machine} holds")

    def breaks(self, what: str) -> None:
        self.loop.say("BROKEN: %s", what)
        self.broken = self.broken or what

    def hear(self, machine: Machine, thread_id: str, frames: list[bytes], at: int, head: Head) -> None:
        """Note that a process got the answer that its append was accepted."""
        now, lease = self.loop.time(), self.leases.get((machine, thread_id))
        if frames:
            self.acknowledged.append((thread_id, at, tuple(frames)))
        if lease is None or head.lease is None or head.lease.token != lease.token:
            return
        made = min(now, self._moment(machine, head.updated_at.timestamp()))
        if frames or now < lease.until:
            lease.until = max(lease.until, made + LASTS)
            if now < lease.until:
                lease.proved = now

    def _moment(self, machine: Machine, wall: float) -> float:
        """Return when the clock of this machine showed this time."""
        for since, ahead in reversed(self.clocks[machine]):
            if wall - EPOCH - ahead >= since - 0.001:
                return wall - EPOCH - ahead
        return 0.0


class SimulatedStore(Checkpointer):
    """The store as one process sees it. `takeover` says whether its agent takes threads from live processes."""

    def __init__(self, server: Server, machine: Machine, *, takeover: bool = False) -> None:
        self._server = server
        self._machine = machine
        self._takeover = takeover

    async def _call(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        assert current_machine() is self._machine
        return await Patience("the simulated store", TIMEOUT).limit(self._server.send(self._machine, what, work))

    async def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        sent, server, machine = list(frames), self._server, self._machine
        work = lambda: server.append(machine, self._takeover, thread_id, sent, at, head, set(refs))  # noqa: E731
        try:
            await settle(self._call(f"append {thread_id} at {at}", work))
        except Conflict:
            server.on_conflict(machine, thread_id)
            raise
        server.hear(machine, thread_id, sent, at, head)

    async def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        return await self._call(
            f"read {thread_id}", lambda: self._server.memory.read(thread_id, start=start, stop=stop)
        )

    async def head(self, thread_id: str) -> Head | None:
        return await self._call(f"head {thread_id}", lambda: self._server.memory.head(thread_id))

    async def heads(self, query: HeadQuery = HeadQuery()) -> AsyncIterator[Head]:
        async def found() -> list[Head]:
            return [head async for head in self._server.memory.heads(query)]

        for head in await self._call("heads", found):
            yield head

    async def refs(self, thread_id: str) -> set[str]:
        return await self._call("refs", lambda: self._server.memory.refs(thread_id))

    async def delete(self, thread_id: str) -> None:
        await settle(self._call("delete", lambda: self._server.memory.delete(thread_id)))

    async def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        await settle(self._call("put", lambda: self._server.memory.put_blobs(blobs)))

    async def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        return await self._call("get", lambda: self._server.memory.get_blobs(digests))

    async def missing_blobs(self, digests: Collection[str]) -> set[str]:
        return await self._call("missing", lambda: self._server.memory.missing_blobs(digests))

    def blobs(self, *, untouched_for: timedelta) -> AsyncIterator[str]:
        return self._server.memory.blobs(untouched_for=untouched_for)

    async def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        await settle(
            self._call("sweep", lambda: self._server.memory.delete_blobs(digests, untouched_for=untouched_for))
        )

    async def close(self) -> None:
        """Nothing has to be closed."""
