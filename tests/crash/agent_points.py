"""The named points of an agent's run at which its process ends, and what leads past them.

A point is a place and a number, `before-append:7`: how often the process has come by there. Who wants to be everywhere
lets a run go by undisturbed and asks how often it came by each place.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from clew.checkpointers import Checkpointer
from clew.log import Compacted, MessageAdded, ToolOutcome
from clew.messages import Assistant
from clew.threads import Thread
from clew.threads.writer import LogWriter
from clew.workspace import SnapshotRef, Workspace

__all__ = ["LOOSE", "PLACES", "Act", "Points", "agent_of", "line", "watch"]

PLACES = (
    "before-append",
    "after-append",
    "before-write",
    "after-write",
    "between-outcomes",
    "before-effect",
    "after-effect",
    "in-thread",
    "before-blobs",
    "after-blobs",
    "after-snapshot",
    "request",
    "delta",
    "response",
    "summary-request",
    "summary-response",
    "compacted",
)
"""An append is passed when entries are taken in, and when the agent goes on after it; a write, when the store gets them."""
LOOSE = ("before-write", "after-write")
"""How often the store is written to depends on what gathers while it writes: a run may come by once more, or once less."""

Act = Literal["signal", "refuse", "sleep", "raise"]
"""What happens at the point: a signal; a signal, and a tool that will not end, and the signal again; SIGSTOP, once nothing
is being written (who sleeps inside a write may hold a lock of the store); an exception."""


def line(path: Path, text: str) -> None:
    """Write down what has happened, so that it stays whatever becomes of the process."""
    with path.open("a") as out:
        out.write(f"{text}\n")
        out.flush()
        os.fsync(out.fileno())


class Points:
    """Counts what passes, and acts when it is its turn."""

    def __init__(self, folder: Path, wanted: str, act: Act, number: int, *, in_order: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.on_record = OnRecord()
        self._folder = folder
        self._wanted = wanted
        self._act = act
        self._number = number
        self._in_order = in_order
        self._staying = ""

    def passed(self, place: str) -> None:
        self.counts[place] += 1
        if f"{place}:{self.counts[place]}" != self._wanted:
            return
        line(self._folder / "asking", str(len(self.on_record.asking)))
        if self._act == "raise":
            raise RuntimeError("the model broke")
        self._staying = self._act if self._act in ("refuse", "sleep") else ""
        if self._act != "sleep":
            os.kill(os.getpid(), self._number)

    async def stay(self) -> None:
        """Where a process sleeps; and where a tool refuses to end: told to stop, it lets the process be told again."""
        if self._staying == "sleep":
            self._staying = ""
            while self.on_record.writing:
                await asyncio.sleep(0.001)
            os.write(1, b"sleeps\n")
            os.kill(os.getpid(), signal.SIGSTOP)
        while self._staying == "refuse":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                line(self._folder / "asking", str(len(self.on_record.asking)))
                os.kill(os.getpid(), self._number)

    async def wait_for_neighbours(self, thread_id: str, call_id: str) -> None:
        """In every other turn, let a call end only when the calls before it have their outcomes on record; else several go
        on record together, and there is nothing between them."""
        turn, _, index = call_id.partition(".")
        before = {(agent_of(thread_id), f"{turn}.{number}") for number in range(int(index))}
        if not (self._in_order and int(turn) % 2 and before):
            return
        while not before <= self.on_record.outcomes:
            await asyncio.sleep(0.0005)
        self.passed("between-outcomes")


class OnRecord:
    """What the store has acknowledged: nothing that is merely on its way counts."""

    def __init__(self) -> None:
        self.outcomes: set[tuple[str, str]] = set()
        """The calls of this process whose outcomes are on record, by agent and id."""
        self.writing = 0
        """Writes under way."""
        self._asked: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._recorded: Counter[str] = Counter()
        self._ended: set[tuple[str, str]] = set()

    @property
    def asking(self) -> set[str]:
        """The agents whose model was asked and whose response is not on record."""
        return {agent for agent, asked in self._asked.items() if self._recorded[agent] < asked}

    def ask(self, agent: str) -> None:
        self._asked[agent] += 1

    def take_in(self, agent: str, entries: Sequence[Any]) -> None:
        for entry in entries:
            if isinstance(entry, ToolOutcome):
                self._ended.add((agent, entry.result.call_id))
            elif isinstance(entry, Compacted) or (
                isinstance(entry, MessageAdded) and isinstance(entry.message, Assistant)
            ):
                self._answered[agent] = self._asked[agent]

    @contextmanager
    def write(self, agent: str) -> Iterator[None]:
        """Around a write, which carries all that was taken in when it begins."""
        answered, ended = self._answered[agent], {call for call in self._ended if call[0] == agent}
        self.writing += 1
        try:
            yield
        finally:
            self.writing -= 1
        self._recorded[agent] = answered
        self.outcomes |= ended


def agent_of(thread_id: str) -> str:
    """A child's thread is named after its parent's."""
    return "clerk" if "/" in thread_id else "desk"


def watch(points: Points, store: Checkpointer) -> None:
    """Let all that this process's agents record, store and snapshot pass these points."""
    _watch_threads(points)
    _watch_snapshots(points)
    _watch_store(points, type(store))


def _watch_threads(points: Points) -> None:
    accept, append = LogWriter.accept, Thread.append

    def watched_accept(self: LogWriter, entries: Sequence[Any]) -> int:
        points.passed("before-append")
        points.on_record.take_in(agent_of(self.head.thread_id), entries)
        return accept(self, entries)

    async def watched_append(self: Thread, *entries: Any) -> None:
        await append(self, *entries)
        if any(isinstance(entry, Compacted) for entry in entries):
            points.passed("compacted")
        points.passed("after-append")

    LogWriter.accept = watched_accept  # type: ignore[method-assign]
    Thread.append = watched_append  # type: ignore[method-assign]


def _watch_snapshots(points: Points) -> None:
    snapshot = Workspace.snapshot

    async def watched(self: Workspace, *given: Any, **named: Any) -> SnapshotRef:
        ref = await snapshot(self, *given, **named)
        points.passed("after-snapshot")
        return ref

    Workspace.snapshot = watched  # type: ignore[method-assign]


def _watch_store(points: Points, kind: Any) -> None:
    append, put_blobs = kind.append, kind.put_blobs

    async def watched_append(self: Checkpointer, thread_id: str, *given: Any, **named: Any) -> None:
        with points.on_record.write(agent_of(thread_id)):
            points.passed("before-write")
            await append(self, thread_id, *given, **named)
        points.passed("after-write")

    async def watched_put(self: Checkpointer, *given: Any, **named: Any) -> None:
        points.passed("before-blobs")
        await put_blobs(self, *given, **named)
        points.passed("after-blobs")

    kind.append, kind.put_blobs = watched_append, watched_put
