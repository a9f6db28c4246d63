"""What a timeline is made of: turns, their calls, and the marks between them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from clew.log import Checkpoint, Usage, WorkspaceSnapshot
from clew.messages import Block, Message, ToolCall, ToolResult

__all__ = ["CallStatus", "Mark", "MarkKind", "Timeline", "TimelineCall", "TimelineTurn"]

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
