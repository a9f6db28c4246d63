"""The parts of a timeline: turns, their calls, and the marks between them, which stand for events such as a crash.

Also the drafts of turns and calls, which are filled in while a log is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from clew.log import Checkpoint, Usage, WorkspaceSnapshot
from clew.messages import Assistant, Block, Message, ToolCall, ToolResult

__all__ = [
    "CallStatus",
    "DraftCall",
    "DraftTurn",
    "Mark",
    "MarkKind",
    "Timeline",
    "TimelineCall",
    "TimelineTurn",
    "is_beside",
    "match_results",
    "moment",
    "place_of",
]


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
    "queued",
    "answered",
    "interrupted",
    "failed",
    "moved",
    "changed",
    "done",
]


class TimelineCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a turn, and its result.

    Its status is one of these:

    - `done`: it ran and its outcome is on record.
    - `replayed`: its outcome was on record when the thread was resumed, so it was not run again.
    - `running`: it was started under the current lease.
    - `waiting`: it asked a person.
    - `in doubt`: it was started, and it is unknown whether it took effect.
    - `not started`: nothing of it is on record.
    """

    index: int
    call: ToolCall
    status: CallStatus
    result: ToolResult | None = None
    started_at: datetime | None = None
    """When the call last started. For a tool without effects, when the response that asked for it arrived."""
    seconds: float | None = None
    """Seconds from the call's start to its outcome. None if it has no outcome, or if the log has no time for it."""
    attempts: int = 0
    was_in_doubt: bool = False
    """True if a process stopped while it ran this call. The call may have an outcome by now."""


class TimelineTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One response of the model and its calls. Turns that a rewind took back are kept and have `rewound` set."""

    position: int
    """The turn's index among all turns ever made, also rewound ones, from 0. It never changes."""
    number: int
    """The turn's number in the conversation, from 1, as `rewind` and `fork` use it.

    A rewound turn and a later one may have the same number.
    """
    rewound: bool = False
    inherited: bool = False
    """True if the turn was made before this log began, for example by the thread that was forked. Then it has no times.
    """
    prompts: tuple[Message, ...] = ()
    """The messages to the model between the turn before and this one."""
    blocks: tuple[Block, ...] = ()
    calls: tuple[TimelineCall, ...] = ()
    model: str = ""
    stop: str = ""
    started_at: datetime | None = None
    """When the request was sent to the model."""
    responded_at: datetime | None = None
    ended_at: datetime | None = None
    """When the last call of the turn got its outcome. None while a call has none."""
    seconds: float | None = None
    """Seconds from the request to the end of the turn, without the time in which no process worked on it."""
    usage: Usage | None = None
    cost_usd: float | None = None
    """The cost of the turn in US dollars, or None if it is unknown."""
    snapshot: WorkspaceSnapshot | None = None
    """The file snapshot that was taken after this turn, if any."""
    metadata: dict[str, Any] = {}
    """The metadata that the turn's tools recorded."""
    message: int = -1
    """Index of the model's response in the thread's history."""
    frame: int = -1
    """Number of the frame that holds the model's response. A log's first frame is 0."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the thread between two turns or within one, such as a crash, a resume or a rewind."""

    kind: MarkKind
    position: int
    """Number of turns, also rewound ones, that were made before this happened. The mark is shown after that many turns.
    """
    turn: int
    """Number of the turn in the conversation at which this happened."""
    at: datetime | None = None
    within: bool = False
    """True if this happened while calls of the turn before it had no outcome yet."""
    text: str = ""
    """What happened, in a few words."""
    owner: str = ""
    """The process that the mark is about, or "" if it is about none."""
    same_process: bool = False
    """True for a resume by the same process that worked on the thread before."""
    to_turn: int | None = None
    """For a rewind, the turn that it went back to. For a fork or a sub-agent's thread, the parent's turn."""
    seconds: float | None = None
    """For a resume, how long no process had worked on the thread."""
    frame: int = -1


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a thread's history: some turns that follow each other, and the marks between them. A mark stands for
    something that happened, such as a crash."""

    thread_id: str
    turns: tuple[TimelineTurn, ...]
    marks: tuple[Mark, ...]
    start: int
    stop: int
    total: int
    """Number of all turns that the thread ever made: also rewound ones, and those before and after this part."""
    frames: int
    """Number of frames of the log that were read, from the first on. A reader can continue from here."""
    snapshot: WorkspaceSnapshot | None = None
    """The file snapshot from before the first turn, if any."""
    pending: tuple[Message, ...] = ()
    """Messages to the model that have no response yet. Empty unless this part reaches the end of the log."""
    partial: tuple[Block, ...] = ()
    """The blocks that have arrived of a response that is not complete yet."""
    asked_at: datetime | None = None
    """When the request was sent whose response is still awaited, or None."""
    checkpoint: Checkpoint
    """The thread's state at the end of the log."""


class DraftCall:
    """A tool call that is being filled in while the log is read. `built` makes a `TimelineCall` of it."""

    def __init__(self, index: int, call: ToolCall, asked: int | None) -> None:
        self.index, self.call = index, call
        self.asked = asked
        self.begun: int | None = None
        self.lease = -1
        """Number of the lease, counted from the start of the log, under which the call was last started. -1 if under
        none."""
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

    def built(self, status: CallStatus, inherited: bool) -> TimelineCall:
        """Return the call as a `TimelineCall` with this status.

        `inherited` says that the call is older than this log, for example because the thread was forked after it. Then
        the `TimelineCall` has no start time and no duration, because the log does not say them.
        """
        began = self.begun if self.begun is not None and not inherited else self.asked
        return TimelineCall(
            index=self.index,
            call=self.call,
            status=status,
            result=self.result,
            started_at=moment(began) if self.begun is not None or not self.open else None,
            seconds=_seconds(began, self.ended),
            attempts=self.attempts,
            was_in_doubt=self.doubted,
        )


class DraftTurn:
    """A turn that is being filled in while the log is read. `built` makes a `TimelineTurn` of it."""

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

    def built(self, calls: Iterable[TimelineCall]) -> TimelineTurn:
        """Return the turn as a `TimelineTurn` with these calls."""
        ended = self.ended
        return TimelineTurn(
            position=self.position,
            number=self.number,
            rewound=self.rewound,
            inherited=self.inherited,
            prompts=self.prompts,
            blocks=self.response.content,
            calls=tuple(calls),
            model=self.response.model,
            stop=self.response.stop,
            started_at=moment(self.started),
            responded_at=moment(self.responded),
            ended_at=moment(ended),
            seconds=_seconds(self.started, ended, self.idle),
            usage=self.usage,
            cost_usd=self.cost,
            snapshot=self.snapshot,
            metadata=dict(self.metadata),
            message=self.message,
            frame=self.frame,
        )


def moment(micros: int | None) -> datetime | None:
    """Return a frame's time, in microseconds since 1970, as a datetime. None stays None."""
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)


def _seconds(start: int | None, end: int | None, idle: int = 0) -> float | None:
    return None if start is None or end is None else max(0, end - start - idle) / 1e6


def is_beside(position: int, start: int, stop: int) -> bool:
    """Return whether a timeline of the turns at the positions from `start` up to, but not including, `stop` shows a
    mark. A mark stands for something that happened between turns, such as a crash.

    `position` is the number of turns before the mark. A mark is shown with the turn before it, or with the first turn
    if there is none before it.
    """
    return start < position <= stop or (position == start == 0)


def match_results(calls: Sequence[DraftCall], blocks: Iterable[Block], now: int | None) -> None:
    """Store each tool result among these blocks in the draft of its call. The call of a result is the first in `calls`
    that has the result's id and no result yet.

    `now` is the time of the results in microseconds since 1970, if known.
    """
    for block in blocks:
        if isinstance(block, ToolResult):
            found = next((call for call in calls if call.open and call.call.id == block.call_id), None)
            if found is not None:
                found.finish(block, now)


def place_of(happened: TimelineTurn | Mark) -> tuple[int, int]:
    """Return a key by which turns and marks (events such as a crash) can be sorted together: each turn before the marks
    that follow it."""
    return (happened.position, 1) if isinstance(happened, Mark) else (happened.position + 1, 0)
