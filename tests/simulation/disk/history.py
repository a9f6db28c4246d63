"""What the processes of a simulated machine did and were told, and what must hold for it.

- Acknowledged is there: an append that returned is in its log, at its place, after kills and power cuts, unless the thread
  was deleted.
- One writer: at each place of a log is the append of one caller, whole and once. Half an append is never visible.
- Refused is not there: of an append that raised `Conflict` or `MissingBlob`, nothing was ever written.
- A read shows every append that returned before it began. Between two power cuts, logs only grow.
- A deletion that returned is done: what was stored before is not seen again.
- The store recovers by itself: a call never raises `Corrupt`, and `Unavailable` only if one of its system calls failed.
- Blobs that a log refers to are there.
- No call hangs: each ends within a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from clew.errors import ClewError, Conflict, MissingBlob, Unavailable
from tests.simulation.disk.calls import Calls
from tests.simulation.history import Append, Broken, Deletion
from tests.simulation.loop import SimulatedLoop, current_machine

__all__ = ["Append", "Broken", "Deletion", "History", "Read"]

LONGEST = 60.0
"""The most seconds of virtual time that a call may take."""
T = TypeVar("T")


class Read(msgspec.Struct):
    """A read of a whole log. `epoch` is how many power cuts there were before it."""

    thread: str
    frames: list[bytes]
    began: float
    ended: float
    epoch: int


class History:
    """Everything that the processes of one run did. `call` makes each call to a store."""

    def __init__(self, loop: SimulatedLoop, calls: Calls) -> None:
        self._loop = loop
        self._calls = calls
        self.appends: list[Append] = []
        self.deletions: list[Deletion] = []
        self.reads: list[Read] = []
        self.epoch = 0
        self.outcomes: dict[str, int] = {}

    async def call(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Make a call to a store, and return its result. Notes what came of it. Raises `Broken` for an error that it may
        not have."""
        machine, began = current_machine(), self._loop.time()
        faults = self._calls.faults.get(machine, 0)
        self._loop.say("%s begins", what)
        try:
            result = await work
        except GeneratorExit:  # the process was killed, or the run is over
            raise
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
            self._end(what, outcome, began)
            has_failed = self._calls.faults.get(machine, 0) > faults
            is_allowed = isinstance(error, (Conflict, MissingBlob, asyncio.CancelledError)) or (
                isinstance(error, Unavailable) and has_failed
            )
            if not is_allowed:
                raise Broken(f"{what}: {outcome}") from error
            raise
        self._end(what, "returns", began)
        return result

    def _end(self, what: str, outcome: str, began: float) -> None:
        self._loop.say("%s: %s", what, outcome)
        kind = f"{what.split()[0]} {outcome.split(':')[0]}"
        self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
        if self._loop.time() - began > LONGEST:
            raise Broken(f"{what} took {self._loop.time() - began:.0f} s")

    async def append(self, append: Append, work: Coroutine[Any, Any, None]) -> None:
        """Make the call of this append. Raises what the call raises."""
        is_first, append.ended = append.ended == float("inf"), float("inf")
        try:
            await self.call(f"append {append.thread} {append.log} at {append.at} {append.frames[0][:20]!r}", work)
        except (Unavailable, asyncio.CancelledError):
            raise
        except ClewError:
            if is_first:  # an earlier call with the same frames may have written them
                append.outcome = "refused"
            raise
        else:
            append.outcome = "stored"
        finally:
            append.ended = self._loop.time()

    # What must hold in the end

    def check(self, logs: Mapping[str, tuple[str, list[bytes]]]) -> None:
        """Compare what the processes were told with what the store has: for each thread, the id and frames of its log."""
        for thread, (log, frames) in logs.items():
            self._check_log(thread, log, frames)
        for append in self.appends:
            log, frames = logs.get(append.thread, ("", []))
            self._check_append(append, frames if log == append.log else [])
        for read in self.reads:
            self._check_read(read)
        self._check_growth()

    def _check_append(self, append: Append, log: list[bytes]) -> None:
        there = tuple(log[append.at : append.at + len(append.frames)]) == append.frames
        if append.outcome == "stored" and not there and not self._may_be_deleted(append):
            raise Broken(f"an append that returned is gone: {append}")
        if append.outcome == "refused" and set(log) & set(append.frames):
            raise Broken(f"an append that was refused was written: {append}")
        if there and self._is_deleted(append):
            raise Broken(f"an append is back after its deletion: {append}")

    def _check_log(self, thread: str, log: str, frames: list[bytes]) -> None:
        writers = {frame: append for append in self.appends for frame in append.frames}
        if len(set(frames)) != len(frames):
            raise Broken(f"{thread} has a frame twice: {frames}")
        for frame in frames:
            append = writers.get(frame)
            if append is None or (append.thread, append.log) != (thread, log):
                raise Broken(f"{thread} has a frame that nobody wrote there: {frame[:40]!r}")
            if tuple(frames[append.at : append.at + len(append.frames)]) != append.frames:
                raise Broken(f"{thread} has only a part of {append}, or has it elsewhere")

    def _check_read(self, read: Read) -> None:
        for append in self.appends:
            if append.thread != read.thread:
                continue
            there = tuple(read.frames[append.at : append.at + len(append.frames)]) == append.frames
            if append.outcome == "refused" and set(read.frames) & set(append.frames):
                raise Broken(f"a read at {read.began} shows an append that was refused: {append}")
            if not there and set(read.frames) & set(append.frames):
                raise Broken(f"a read at {read.began} shows a part of {append}")
            is_due = append.outcome == "stored" and append.ended < read.began
            if is_due and not there and not self._may_be_deleted(append, before=read.ended):
                raise Broken(f"a read at {read.began} lacks an append that had returned: {append}")
            if there and self._is_deleted(append, before=read.began):
                raise Broken(f"a read at {read.began} shows a deleted append: {append}")

    def _check_growth(self) -> None:
        """Check that of two reads of one log between two power cuts, the shorter one is the beginning of the longer one."""
        by_first: dict[tuple[int, bytes], list[Read]] = {}
        for read in self.reads:
            if read.frames:
                by_first.setdefault((read.epoch, read.frames[0]), []).append(read)
        for reads in by_first.values():
            reads.sort(key=lambda read: len(read.frames))
            for shorter, longer in pairwise(reads):
                if longer.frames[: len(shorter.frames)] != shorter.frames:
                    raise Broken(f"two reads of {shorter.thread} differ: {shorter} and {longer}")

    def _may_be_deleted(self, append: Append, before: float = float("inf")) -> bool:
        """Return whether a deletion of the thread may have come after this append."""
        return any(
            deletion.thread == append.thread and deletion.began < before and deletion.ended > append.began
            for deletion in self.deletions
        )

    def _is_deleted(self, append: Append, before: float = float("inf")) -> bool:
        """Return whether a deletion came after this append: it began when the append had ended, and has returned."""
        return any(
            deletion.thread == append.thread and append.ended < deletion.began and deletion.ended < before
            for deletion in self.deletions
        )
