"""What a timeline is made of: turns, their calls, and the marks between them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from clew.log import Checkpoint, Usage, WorkspaceSnapshot
from clew.messages import Assistant, Block, Message, ToolCall, ToolResult

__all__ = ["CallStatus", "DraftCall", "DraftTurn", "Mark", "MarkKind", "Timeline", "TimelineCall", "TimelineTurn"]


CallStatus = Literal["done", "replayed", "running", "waiting", "in doubt", "not started"]
MarkKind = Literal[
    "started",
    "forked",
    "called",
    "resumed",
    "crashed",
    "taken over",
    "rewound",
    "compacted",
    "refused",
    "waiting",
    "answered",
    "interrupted",
    "failed",
    "moved",
    "changed",
    "done",
]


class TimelineCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a turn, and what it came to.

    `done`: it ran and its outcome is on record. `replayed`: that was so when the thread was resumed, and it was not run
    again. `running`: it was begun under the lease that is held. `waiting`: it asked a person. `in doubt`: it was begun, and
    nobody knows whether it took effect. `not started`: nothing of it is on record.
    """

    index: int
    call: ToolCall
    status: CallStatus
    result: ToolResult | None = None
    started_at: datetime | None = None
    """When its body started, for the last time; for a tool without effects, when the response came that asked for it."""
    seconds: float | None = None
    """From then to its outcome; None if it has none, or if the log has no time for it."""
    attempts: int = 0
    was_in_doubt: bool = False
    """A process stopped while it ran. It may have an outcome since."""


class TimelineTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One response of the model and its calls. What was rewound is kept, and says so."""

    position: int
    """Its place among all turns ever made, from 0: what names it once and for all."""
    number: int
    """The turn that it is, or was, in its line of work, from 1: what `rewind` and `fork` go by."""
    rewound: bool = False
    inherited: bool = False
    """It was made before this log began, by the thread that this one is a fork of, say: there are no times for it."""
    prompts: tuple[Message, ...] = ()
    """What was said to the model since the turn before."""
    blocks: tuple[Block, ...] = ()
    calls: tuple[TimelineCall, ...] = ()
    model: str = ""
    stop: str = ""
    started_at: datetime | None = None
    """When the model was asked."""
    responded_at: datetime | None = None
    ended_at: datetime | None = None
    """When its last call was settled; None while one is not."""
    seconds: float | None = None
    """From asking the model to its end, without the time in which nobody worked on it."""
    usage: Usage | None = None
    cost_usd: float | None = None
    """None: nobody knows, or nobody said."""
    snapshot: WorkspaceSnapshot | None = None
    """The files, if they were kept after this turn."""
    metadata: dict[str, Any] = {}
    """What its tools said about it."""
    message: int = -1
    """Place of the response in the history."""
    frame: int = -1
    """The frame of the log that holds the response."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the thread between two turns, or within one."""

    kind: MarkKind
    position: int
    """How many turns had been made: it stands after that many."""
    turn: int
    """The turn the thread was at, in the line of work of then."""
    at: datetime | None = None
    within: bool = False
    """The last of those turns had calls that were not settled."""
    text: str = ""
    """What happened, in a few words."""
    owner: str = ""
    """The process, where it is about one."""
    same_process: bool = False
    """A resume by the process that worked on it before."""
    to_turn: int | None = None
    """For a rewind: where it went back to."""
    seconds: float | None = None
    """For a resume: how long nobody worked on it before."""
    frame: int = -1


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of what happened on a thread: turns by position, and the marks that stand beside them."""

    thread_id: str
    turns: tuple[TimelineTurn, ...]
    marks: tuple[Mark, ...]
    start: int
    stop: int
    total: int
    """Turns ever made, rewound ones included."""
    frames: int
    """Frames read so far: where a reader goes on."""
    snapshot: WorkspaceSnapshot | None = None
    """The files before the first turn, if they were kept."""
    pending: tuple[Message, ...] = ()
    """What was said to the model and has no response yet; only where the stretch reaches the end."""
    partial: tuple[Block, ...] = ()
    """What came so far of a response that is not whole."""
    asked_at: datetime | None = None
    """When the model was asked for a response that is still awaited."""
    checkpoint: Checkpoint
    """The state at the end of the log."""


class DraftCall:
    """A call as far as it has come."""

    def __init__(self, index: int, call: ToolCall, asked: int | None) -> None:
        self.index, self.call = index, call
        self.asked = asked
        self.begun: int | None = None
        self.lease = -1
        """The lease under which it was begun last, counted from the first."""
        self.attempts = 0
        self.result: ToolResult | None = None
        self.ended: int | None = None
        self.replayed = self.doubted = False

    @property
    def open(self) -> bool:
        return self.result is None

    def finish(self, result: ToolResult, now: int | None) -> None:
        if self.result is None:
            self.result, self.ended = result, now

    def begin(self, attempt: int, lease: int, now: int) -> None:
        self.begun, self.lease, self.attempts = now, lease, max(attempt, self.attempts + 1)


class DraftTurn:
    """A turn as far as it has come."""

    def __init__(self, position: int, number: int, message: int, response: Assistant, frame: int) -> None:
        self.position, self.number, self.message, self.frame = position, number, message, frame
        self.response = response
        self.prompts: tuple[Message, ...] = ()
        self.calls: list[DraftCall] = []
        self.started: int | None = None
        self.responded: int | None = None
        self.idle = 0
        self.usage: Usage | None = None
        self.cost: float | None = None
        self.snapshot: WorkspaceSnapshot | None = None
        self.metadata: dict[str, Any] = {}
        self.rewound = self.inherited = False

    @property
    def open(self) -> bool:
        return not self.rewound and any(call.open for call in self.calls)

    @property
    def ended(self) -> int | None:
        times = [self.responded, *(call.ended for call in self.calls)]
        return None if self.open else max((time for time in times if time is not None), default=None)

    def spend(self, usage: Usage, cost: float | None) -> None:
        before = self.usage or Usage()
        added = map(sum, zip(msgspec.structs.astuple(before), msgspec.structs.astuple(usage), strict=True))
        self.cost = None if cost is None or (self.usage and self.cost is None) else (self.cost or 0.0) + cost
        self.usage = Usage(*added)
