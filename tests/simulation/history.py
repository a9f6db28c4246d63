"""What the clients of a simulated store did and were told, and what must hold for it.

- Acknowledged is there: an append that returned is in its log, at its place, unless the thread was deleted.
- One writer: at each place of a log is the append of one caller, whole and once.
- Refused is not there: of an append that raised anything but `Unavailable`, nothing was ever written. Only if the thread was
  deleted during the call may it have been there before: a store that had no answer looks again, and finds no thread.
- A read shows every append that returned before it began, each append whole or not at all, and logs only grow.
- Deleted is gone: an append that returned before a deletion began is not there any more once the deletion has returned.
- No call hangs: each ends `TIMEOUT` seconds after the last sign of life of the server, `close` included.
- No client runs in circles: the callbacks and the attempts to connect in each second are few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import msgspec

from clew.errors import ClewError, Unavailable, UsageError
from tests.simulation.loop import Machine, SimulatedLoop, current_machine

__all__ = ["TIMEOUT", "Append", "Broken", "Deletion", "History", "Logs", "Read", "texts"]

TIMEOUT = 10.0
SLACK = TIMEOUT / 4 + 0.5
"""Seconds that a call may take longer: four times in `TIMEOUT` the engine looks whether bytes have moved."""
MOST_CALLBACKS, MOST_ATTEMPTS = 12_000, 200
"""The most callbacks of all machines, and the most attempts to connect of one machine, in a second of virtual time."""

T = TypeVar("T")
Logs = Mapping[tuple[str, str], list[bytes]]
"""The frames of each log, by the id of its thread and its own."""


class Network(Protocol):
    """What a history asks of the network between the clients and their server."""

    attempts: dict[Machine, int]
    """How often each machine has tried to reach the server."""
    moved_at: dict[Machine, float]
    """When each machine last had a sign of life of the server, or one that it may take for such."""
    heard_at: dict[Machine, float]
    """When each machine last had a sign of life of the server for certain."""


class Broken(AssertionError):
    """A promise is broken in a simulated run."""


class Append(msgspec.Struct, eq=False):
    """An append that a client made, once or again with the same frames. `outcome` is "stored", "refused" or "unknown"; the
    last is what it is until the client knows."""

    thread: str
    log: str
    at: int
    frames: tuple[bytes, ...]
    refs: tuple[str, ...]
    began: float
    outcome: str = "unknown"
    ended: float = float("inf")
    is_given_up: bool = False
    """Whether a call of it was given up, so that its statement may still arrive, at any time."""


class Deletion(msgspec.Struct, eq=False):
    thread: str
    began: float
    ended: float = float("inf")
    is_done: bool = False
    """Whether the call has returned. If it raised `Unavailable`, nobody knows."""


class Read(msgspec.Struct):
    thread: str
    frames: list[bytes]
    began: float
    ended: float


class _Call(msgspec.Struct, eq=False):
    what: str
    machine: Machine
    began: float


class History:
    """Everything that the clients of one run did. `call` makes each call to a store and watches its time."""

    def __init__(self, loop: SimulatedLoop, network: Network, most_attempts: int = MOST_ATTEMPTS) -> None:
        self._loop = loop
        self._network = network
        self._most_attempts = most_attempts
        self.appends: list[Append] = []
        self.deletions: list[Deletion] = []
        self.reads: list[Read] = []
        self.blobs: set[str] = set()
        """The blobs whose `put_blobs` returned."""
        self._calls: dict[_Call, None] = {}
        self.outcomes: dict[str, int] = {}

    async def call(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Make a call to a store, and return its result. Notes what came of it."""
        call = _Call(what, current_machine(), self._loop.time())
        self._calls[call] = None
        self._loop.say("%s begins", what)
        try:
            result = await work
        except GeneratorExit:  # the machine was killed, or the run is over
            raise
        except BaseException as error:
            self._end(
                call, f"{type(error).__name__}: {error}" if isinstance(error, ClewError) else type(error).__name__
            )
            raise
        self._end(call, "returns")
        return result

    def _end(self, call: _Call, outcome: str) -> None:
        del self._calls[call]
        self._loop.say("%s: %s", call.what, outcome)
        kind = f"{call.what.split()[0]} {outcome.split(':')[0]}"
        self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
        self._check_time(call)
        waited = self._loop.time() - min(call.began, self._network.heard_at.get(call.machine, 0.0))
        is_awake = call.machine.wakes < self._loop.time() - TIMEOUT  # a process that was stopped has seen nothing move
        if "no answer for" in outcome and is_awake and waited < TIMEOUT * 3 / 4:
            raise Broken(f"{call.what} was given up after {waited:.3f} s: {outcome}")

    async def append(self, append: Append, work: Coroutine[Any, Any, None]) -> None:
        """Make the call of this append. Raises what the call raises."""
        try:
            await self.call(f"append {append.thread} {append.log} at {append.at} {append.frames[0][:20]!r}", work)
        except (Unavailable, UsageError, asyncio.CancelledError):
            append.is_given_up = True
            raise
        except ClewError:
            if append.ended == float("inf"):  # an earlier call with the same frames may have written them
                append.outcome = "refused"
            raise
        else:
            append.outcome = "stored"
        finally:
            append.ended = self._loop.time()

    async def delete(self, thread: str, work: Coroutine[Any, Any, None]) -> None:
        """Make the call that deletes this thread. Raises what the call raises."""
        deletion = Deletion(thread, self._loop.time())
        self.deletions.append(deletion)
        try:
            await self.call(f"delete {thread}", work)
            deletion.is_done = True
        finally:
            deletion.ended = self._loop.time()

    async def watch(self) -> None:
        """Look once a second whether a call hangs or a machine runs in circles. Raises `Broken` when it finds one."""
        steps, attempts = self._loop.steps, dict(self._network.attempts)
        while True:
            await asyncio.sleep(1)
            for call in list(self._calls):
                self._check_time(call)
            if self._loop.steps - steps > MOST_CALLBACKS:
                raise Broken(f"{self._loop.steps - steps} callbacks in one second: a client runs in circles")
            for machine, count in self._network.attempts.items():
                if count - attempts.get(machine, 0) > self._most_attempts:
                    raise Broken(
                        f"{machine} tried to reach the server {count - attempts.get(machine, 0)} times in one second"
                    )
            steps, attempts = self._loop.steps, dict(self._network.attempts)

    def forget(self, machine: Machine) -> None:
        """A machine was killed: its calls never end."""
        self._calls = {call: None for call in self._calls if call.machine is not machine}

    def _check_time(self, call: _Call) -> None:
        silent = self._loop.time() - max(call.began, self._network.moved_at.get(call.machine, 0.0), call.machine.wakes)
        if silent > TIMEOUT + SLACK:
            raise Broken(f"{call.what} of {call.machine} goes on after {silent:.1f} s without a sign of the server")

    # What must hold in the end

    def check(self, logs: Logs, blobs: Set[str]) -> None:
        """Compare what the clients were told with what the server has: these logs, and the blobs with these digests. Call
        this when nothing is under way any more."""
        for place, log in logs.items():
            self._check_whole(f"{place}", log)
            if any((append.thread, append.log) != place for append in self._writers(log)):
                raise Broken(f"{place} has a frame that was written to another log: {log}")
        for append in self.appends:
            self._check_append(append, logs.get((append.thread, append.log)))
        for read in self.reads:
            self._check_read(read)
        self._check_growth()
        if lost := self.blobs - blobs:
            raise Broken(f"stored blobs are gone: {lost}")

    def _check_append(self, append: Append, log: list[bytes] | None) -> None:
        there = log is not None and tuple(log[append.at : append.at + len(append.frames)]) == append.frames
        if append.outcome == "stored" and not there and not self._may_be_deleted(append):
            raise Broken(f"an append that returned is gone: {append}")
        if append.outcome == "refused" and log is not None and set(log) & set(append.frames):
            raise Broken(f"an append that was refused was written: {append}")
        if there and self._is_deleted(append):
            raise Broken(f"an append that was deleted is there again: {append}")

    def _writers(self, frames: Sequence[bytes]) -> list[Append]:
        """Return the append that wrote each of these frames. Raises `Broken` if one was written by nobody."""
        writers = {frame: append for append in self.appends for frame in append.frames}
        if unknown := [frame for frame in frames if frame not in writers]:
            raise Broken(f"there is a frame that nobody wrote: {unknown[0]!r}")
        return [writers[frame] for frame in frames]

    def _check_whole(self, what: str, frames: list[bytes]) -> None:
        """Check that these frames, a whole log, are appends that are whole, in their places, and there once."""
        if len(set(frames)) != len(frames):
            raise Broken(f"{what} has a frame twice: {frames}")
        for append in self._writers(frames):
            if tuple(frames[append.at : append.at + len(append.frames)]) != append.frames:
                raise Broken(f"{what} has only a part of {append}, or has it elsewhere")

    def _check_read(self, read: Read) -> None:
        self._check_whole(f"a read of {read.thread} at {read.began}", read.frames)
        if len({(append.thread, append.log) for append in self._writers(read.frames)}) > 1:
            raise Broken(f"a read at {read.began} mixes logs: {read}")
        for append in self.appends:
            if append.thread != read.thread:
                continue
            is_there = tuple(read.frames[append.at : append.at + len(append.frames)]) == append.frames
            is_shown = bool(set(read.frames) & set(append.frames))
            if append.outcome == "refused" and is_shown and not self._may_be_deleted(append, before=append.ended):
                raise Broken(f"a read at {read.began} shows an append that was refused: {append}")
            is_due = append.outcome == "stored" and append.ended < read.began
            if is_due and not is_there and not self._may_be_deleted(append, before=read.ended):
                raise Broken(f"a read at {read.began} lacks an append that had returned: {append}")
            if is_there and self._is_deleted(append, before=read.began):
                raise Broken(f"a read at {read.began} shows an append that had been deleted: {append}")

    def _check_growth(self) -> None:
        """Check that of two reads of one log, the shorter one is the beginning of the longer one. A log that was deleted
        begins anew if its first append is made again."""
        by_first: dict[bytes, list[Read]] = {}
        for read in self.reads:
            if read.frames:
                by_first.setdefault(read.frames[0], []).append(read)
        for reads in by_first.values():
            reads.sort(key=lambda read: len(read.frames))
            for shorter, longer in pairwise(reads):
                if longer.frames[: len(shorter.frames)] != shorter.frames and not self._deleted_between(
                    shorter, longer
                ):
                    raise Broken(f"two reads of {shorter.thread} differ: {shorter} and {longer}")

    def _may_be_deleted(self, append: Append, before: float = float("inf")) -> bool:
        """Return whether a deletion of the thread may have come after this append. A deletion that was given up does
        nothing to what is written after that."""
        return any(
            deletion.thread == append.thread and deletion.began < before and deletion.ended > append.began
            for deletion in self.deletions
        )

    def _deleted_between(self, one: Read, other: Read) -> bool:
        first, last = sorted((one, other), key=lambda read: read.began)
        return any(
            deletion.thread == first.thread and deletion.began < last.ended and deletion.ended > first.began
            for deletion in self.deletions
        )

    def _is_deleted(self, append: Append, before: float = float("inf")) -> bool:
        """Return whether a deletion of the thread came after this append had returned, and returned itself.

        Never so for an append that makes a thread, of which one call was given up: as the guide says, that can still
        make the thread, even after it was deleted."""
        may_come_late = append.at == 0 and append.is_given_up
        return (
            append.outcome == "stored"
            and not may_come_late
            and any(
                deletion.thread == append.thread
                and deletion.is_done
                and append.ended < deletion.began
                and deletion.ended < before
                for deletion in self.deletions
            )
        )


def texts(frames: Sequence[bytes]) -> list[str]:
    """Return the frames for the trace: only the beginning of each."""
    return [frame[:12].decode() for frame in frames]
