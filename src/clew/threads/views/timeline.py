"""Read a thread's log as a timeline for people: its turns with their times, and marks for what happened between them.

Marks say where the thread crashed, was resumed, rewound, compacted or moved. Every display of a thread uses this
reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from clew.checkpointers import Checkpointer, Head
from clew.errors import ThreadNotFound
from clew.log import (
    Checkpoint,
    Compacted,
    Fold,
    FoldedState,
    Frame,
    LeaseTaken,
    Logged,
    MessageAdded,
    ModelCallRefused,
    ModelCallStarted,
    Rewound,
    Spend,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceSnapshot,
)
from clew.messages import Assistant, Block, Message, Tool, ToolResult, tool_calls
from clew.threads.leases import LEASE_TIME, is_crashed
from clew.threads.reader import Source, decoded, frames
from clew.threads.views.timeline_parts import (
    CallStatus,
    DraftCall,
    DraftTurn,
    Mark,
    MarkKind,
    Timeline,
    TimelineCall,
    TimelineTurn,
    is_beside,
    moment,
)

__all__ = [
    "CallStatus",
    "Mark",
    "MarkKind",
    "Timeline",
    "TimelineCall",
    "TimelineReader",
    "TimelineTurn",
    "read_timeline",
    "reader_of",
]


async def read_timeline(
    store: Checkpointer, thread_id: str, *, start: int = 0, stop: int | None = None, head: Head | None = None
) -> Timeline:
    """Return the timeline of a thread, or of its turns at the positions from `start` up to, but not including, `stop`.

    Positions count all turns, also rewound ones, from 0. A negative `start` counts from the end. Takes no lease and
    changes nothing. The log is read from its beginning and checked; only a few frames at a time are in memory, beside
    the messages themselves. The log is read up to `head`; if that is not given, the thread's head is read from the
    store first.
    """
    reader, head = await reader_of(store, thread_id, head=head)
    return reader.timeline(start, stop, abandoned=is_crashed(head))


async def reader_of(
    store: Source, thread_id: str, *, head: Head | None = None, reader: TimelineReader | None = None
) -> tuple[TimelineReader, Head]:
    """Return a `TimelineReader` that has read the thread's whole log, and the thread's head at that time.

    If `reader` has already read an earlier part of this log, only the rest is read. The log is read up to `head`; if
    that is not given, the thread's head is read from the store first.
    """
    head = head or await store.head(thread_id)
    if head is None:
        raise ThreadNotFound(thread_id)
    reader = reader or TimelineReader(thread_id)
    previous = reader.digest if reader.frames else bytes(16)
    async for number, data in frames(store, head, start=reader.frames, previous=previous):
        reader.feed(await decoded(store, thread_id, number, data))
    return reader, head


class TimelineReader:
    """Reads a log frame by frame from its first frame on, and keeps the timeline of what it has read.

    To follow a growing log, feed each new frame: `feed` returns the turns and marks that it changed, so that only those
    need to be shown.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.frames = 0
        """Number of frames read so far."""
        self.digest = b""
        """Digest of the last frame read. The next frame must follow it."""
        self._fold = Fold()
        self._turns: list[DraftTurn] = []
        self._line: list[DraftTurn] = []
        """The turns that were not rewound, in order. The turn with number n is at index n - 1."""
        self._marks: list[Mark] = []
        self._pending: list[Message] = []
        self._first_snapshot: WorkspaceSnapshot | None = None
        self._asked: int | None = None
        self._refused = ""
        """Why the vendor refused the last request, or "".

        Shown as a mark unless the end of the run gives the same reason.
        """
        self._now = 0
        self._before = 0
        """When the frame before the current one was written, in microseconds since 1970."""
        self._leases = 0
        self._owner = ""
        self._token = ""
        self._provider: str | None = None
        self._steps: set[tuple[int, int, str]] = set()
        self._touched: dict[int, None] = {}

    @property
    def checkpoint(self) -> Checkpoint:
        """The state after the frames read so far."""
        return self._fold.checkpoint()

    @property
    def total(self) -> int:
        """Number of turns so far, including rewound ones."""
        return len(self._turns)

    def position_of(self, number: int) -> int | None:
        """Return the position of turn `number` of the current conversation. Positions count from 0 and include rewound
        turns.

        None if there is no such turn.
        """
        return self._line[number - 1].position if 1 <= number <= len(self._line) else None

    def feed(self, frame: Frame) -> list[TimelineTurn | Mark]:
        """Read the next frame of the log.

        Returns the turns that it added or changed, as they are now, and the marks that it added, in order.
        """
        self._now = frame.time
        marks, self._touched = len(self._marks), {}
        for entry in frame.entries:
            self._take(entry)
        self.frames += 1
        self.digest = frame.digest
        self._before = frame.time
        changed: list[TimelineTurn | Mark] = [self._built(self._turns[position]) for position in self._touched]
        return sorted([*changed, *self._marks[marks:]], key=_place)

    def timeline(self, start: int = 0, stop: int | None = None, *, abandoned: bool = False) -> Timeline:
        """Return the timeline of the turns at the positions from `start` up to, but not including, `stop`.

        `abandoned` says that no live process runs the thread although its status is running. Then the timeline ends
        with a mark that says that it crashed.
        """
        start, stop, _ = slice(start, stop).indices(self.total)
        stop = max(start, stop)
        marks = [*self._marks, self._crash()] if abandoned else self._marks
        at_end = stop == self.total
        awaited = self._fold.in_flight and not abandoned and at_end
        return Timeline(
            thread_id=self.thread_id,
            turns=tuple(self._built(turn, abandoned) for turn in self._turns[start:stop]),
            marks=tuple(mark for mark in marks if is_beside(mark.position, start, stop)),
            start=start,
            stop=stop,
            total=self.total,
            frames=self.frames,
            snapshot=self._first_snapshot,
            pending=tuple(self._pending) if at_end else (),
            partial=self.checkpoint.partial if at_end else (),
            asked_at=moment(self._asked) if awaited else None,
            checkpoint=self.checkpoint,
        )

    def _take(self, entry: Logged) -> None:
        if isinstance(entry, FoldedState):
            if not self.frames and not self._turns:
                self._inherit(entry.state)
            return  # a later folded state repeats the entries before it
        before = self._fold.turns
        status = self._fold.status
        self._fold.push([entry])
        if isinstance(entry, MessageAdded):
            self._message(entry)
        elif isinstance(entry, ModelCallStarted):
            self._tell_refusal()
            self._asked = self._now
        elif isinstance(entry, ModelCallRefused):
            self._tell_refusal()
            self._asked, self._refused = None, entry.reason
        elif isinstance(entry, ToolIntent):
            self._intent(entry)
        elif isinstance(entry, ToolOutcome):
            self._outcome(entry)
        elif isinstance(entry, StepIntent):
            self._steps.add((entry.message, entry.index, entry.key))
        elif isinstance(entry, StepOutcome):
            self._step(entry)
        elif isinstance(entry, LeaseTaken):
            self._lease(entry, status)
        elif isinstance(entry, StatusChanged):
            self._status(entry)
        elif isinstance(entry, ThreadStarted):
            self._started(entry)
        elif isinstance(entry, Rewound):
            self._rewind(before)
        elif isinstance(entry, Compacted):
            self._mark("compacted", "for the model, a summary stands in place of what came before")
        elif isinstance(entry, WorkspaceSnapshot):
            self._snapshot(entry)
        elif isinstance(entry, StateSet):
            self._said_about(entry)
        elif isinstance(entry, Spend) and entry.usage != Usage() and self._line and not self._pending:
            self._line[-1].spend(entry.usage, entry.cost_usd)  # a prompt without a response does not belong to a turn
            self._touch(self._line[-1])

    def _message(self, entry: MessageAdded) -> None:
        message = entry.message
        if isinstance(message, Tool):
            self._results(message)
        elif not isinstance(message, Assistant):
            self._pending.append(message)
        else:
            turn = DraftTurn(self.total, self._fold.turns, self._fold.messages - 1, message, self.frames)
            turn.prompts, self._pending = tuple(self._pending), []
            turn.started = self._now if self._asked is None else self._asked
            turn.responded, self._asked = self._now, None
            turn.calls = [DraftCall(index, call, self._now) for index, call in enumerate(tool_calls(message))]
            if entry.usage is not None:
                turn.spend(entry.usage, entry.cost_usd)
            self._turns.append(turn)
            self._line.append(turn)
            self._touch(turn)

    def _results(self, message: Tool) -> None:
        """Record tool results that came as a message. Agents that record no intents record their results in this way."""
        if not self._line:
            return
        waiting = [call for call in self._line[-1].calls if call.open]
        _match(waiting, message.content, self._now)
        self._touch(self._line[-1])

    def _open_call(self, message: int, index: int) -> DraftCall | None:
        turn = self._line[-1] if self._line else None
        if turn is None or turn.message != message or not 0 <= index < len(turn.calls):
            return None
        self._touch(turn)
        return turn.calls[index]

    def _intent(self, entry: ToolIntent) -> None:
        if (call := self._open_call(entry.message, entry.index)) and call.open:
            call.begin(entry.attempt, self._leases, self._now)

    def _outcome(self, entry: ToolOutcome) -> None:
        if call := self._open_call(entry.message, entry.index):
            call.finish(entry.result, self._now)

    def _step(self, entry: StepOutcome) -> None:
        """Add the mark "answered" to the timeline if this outcome is the recorded answer of a person. It is one if no
        intent was recorded before it."""
        if (entry.message, entry.index, entry.key) not in self._steps:
            self._mark("answered", "a person answered")

    def _tell_refusal(self, end: str = "") -> None:
        """Add a mark if the vendor refused the last request. `end` is the reason for which the run ended; if it already
        contains the vendor's words, no mark is added."""
        if self._refused and self._refused not in end:
            self._mark("refused", f"refused: {self._refused}")
        self._refused = ""

    def _lease(self, entry: LeaseTaken, status: str) -> None:
        if (
            entry.token and entry.token == self._token
        ):  # the holder goes on: it took its own lease again, which it had not renewed in time
            return
        self._token = entry.token
        self._tell_refusal()
        first, given_back = self._leases == 0, status != "running"
        idle = max(0, self._now - self._before)
        if first and not self._turns and not self._marks:
            self._mark("started", f"started by {entry.owner}", owner=entry.owner)
        elif not first and not given_back:
            self._lost_holder(entry, idle)
        if not first or self._turns:
            same = entry.owner == self._owner
            by = "the same process" if same else entry.owner
            pause = idle / 1e6 if self._before else None
            self._mark("resumed", f"resumed by {by}", owner=entry.owner, same_process=same, seconds=pause)
        self._leases += 1
        self._owner = entry.owner
        self._asked = None
        if self._line and self._line[-1].open:
            self._line[-1].idle += idle
            for call in self._line[-1].calls:
                call.replayed = call.replayed or not call.open
                call.doubted = call.doubted or (call.open and call.begun is not None and status != "waiting")
            self._touch(self._line[-1])

    def _lost_holder(self, entry: LeaseTaken, idle: int) -> None:
        """Add a mark for a lease that was never given back before another was taken: "taken over" or "crashed".

        It is "taken over" if the old holder may have been alive. That is so if the same process took the lease again,
        or if a process on another machine took it before it expired. `idle` is the time since the last frame, in
        microseconds.
        """
        elsewhere = entry.owner.partition(" on ")[2] != self._owner.partition(" on ")[2]
        if entry.owner == self._owner or (elsewhere and idle < LEASE_TIME.total_seconds() * 1e6):
            self._mark("taken over", f"taken over from {self._owner}", owner=self._owner)
        else:
            self._marks.append(self._crash())

    def _crash(self) -> Mark:
        return self._make_mark(
            "crashed", f"{self._owner or 'its process'} ended without a word{self._doing()}", self._before, self._owner
        )

    def _doing(self) -> str:
        turn = self._line[-1] if self._line else None
        if turn is not None and turn.open:
            names = dict.fromkeys(call.call.name for call in turn.calls if call.open and call.begun is not None)
            return f" while it ran {', '.join(names)}" if names else f" before the calls of turn {turn.number} began"
        return " while the model was asked" if self._asked is not None else ""

    def _status(self, entry: StatusChanged) -> None:
        if entry.status != "running":
            self._tell_refusal(entry.reason)
            said = f": {entry.reason}" if entry.reason else ""
            self._mark(entry.status, f"{entry.status}{said}", owner=self._owner)
            self._asked = None
            if self._line and self._line[-1].open:
                self._touch(self._line[-1])

    def _started(self, entry: ThreadStarted) -> None:
        provider = str(entry.limits.get("provider") or "clew")
        if self._provider is None:
            if entry.parent is not None and not self._turns:
                self._mark(
                    "called", f"called from turn {entry.parent[1]} of {entry.parent[0]}", to_turn=entry.parent[1]
                )
        elif provider != self._provider:
            self._mark("moved", f"moved from {self._provider} to {provider}")
        elif self._turns:
            model = f"goes on with {entry.model or 'another model'}"
            self._mark("changed", f"{model}: its settings are not those of before")
        self._provider = provider

    def _rewind(self, before: int) -> None:
        after = self._fold.turns
        self._pending, self._asked = [], None
        self._tell_refusal()
        for turn in self._line[after:]:
            turn.rewound = True
            self._touch(turn)
        del self._line[after:]
        self._mark("rewound", f"rewound from turn {before} to turn {after}", to_turn=after, turn=before)

    def _said_about(self, entry: StateSet) -> None:
        """Add metadata that a tool set for the current turn to that turn. Clew's own values are left out."""
        if entry.scope == "turn" and self._line and not entry.key.startswith("clew:"):
            self._line[-1].metadata[entry.key] = entry.value
            self._touch(self._line[-1])

    def _snapshot(self, entry: WorkspaceSnapshot) -> None:
        if self._line:
            self._line[-1].snapshot = entry
            self._touch(self._line[-1])
        else:
            self._first_snapshot = entry

    def _inherit(self, state: Checkpoint) -> None:
        """Take over the turns of `state`, with which the log of a fork, for example, begins. They have no times."""
        self._fold.push([FoldedState(state)])
        self._provider = str(state.limits.get("provider") or "clew")
        end = 0
        for number, view in enumerate(state.marks[1:], 1):
            seen = [place for start, stop in view for place in range(max(start, end), stop)]
            place = max((at for at in seen if isinstance(state.history[at], Assistant)), default=-1)
            response = state.history[place] if place >= 0 else Assistant(())
            turn = DraftTurn(self.total, number, place, response, self.frames)  # type: ignore[arg-type] # an Assistant, as chosen above
            turn.inherited = True
            turn.metadata = state.metadata.get(number, {})
            turn.prompts = tuple(state.history[at] for at in seen if at < place)
            turn.calls = [DraftCall(index, call, None) for index, call in enumerate(tool_calls(response))]
            for at in seen:
                if at > place and isinstance(results := state.history[at], Tool):
                    _match(turn.calls, results.content, None)
            end = max(seen, default=end - 1) + 1
            self._turns.append(turn)
        self._line = list(self._turns)
        self._inherit_open(state)
        for fact in state.facts:
            if fact.kind == "workspace":
                kept = WorkspaceSnapshot(*fact.value)
                if fact.turn:
                    self._line[fact.turn - 1].snapshot = kept
                else:
                    self._first_snapshot = kept
        self._pending = [state.history[place] for start, stop in state.view for place in range(max(start, end), stop)]
        if state.parent is not None:
            parent, turn_number = state.parent
            at = min(turn_number, self.total)
            text = f"forked from turn {turn_number} of {parent}"
            self._mark("forked", text, position=at, turn=at, to_turn=turn_number)

    def _inherit_open(self, state: Checkpoint) -> None:
        if state.open_message < 0 or not self._line:
            return
        for call in self._line[-1].calls:
            if call.index in state.results:
                call.finish(state.results[call.index], None)
            elif call.index in state.intents:
                call.begin(state.intents[call.index][1], -1, self._now)

    def _mark(
        self,
        kind: MarkKind,
        text: str,
        *,
        owner: str = "",
        same_process: bool = False,
        to_turn: int | None = None,
        seconds: float | None = None,
        turn: int | None = None,
        position: int | None = None,
    ) -> None:
        made = self._make_mark(kind, text, self._now, owner)
        changes = {"same_process": same_process, "to_turn": to_turn, "seconds": seconds}
        if turn is not None:
            changes["turn"] = turn
        if position is not None:
            changes["position"] = position
        self._marks.append(msgspec.structs.replace(made, **changes))

    def _make_mark(self, kind: MarkKind, text: str, at: int, owner: str) -> Mark:
        within = bool(self._line) and self._line[-1].open
        return Mark(
            kind=kind,
            position=self.total,
            turn=self._fold.turns,
            at=moment(at),
            within=within,
            text=text,
            owner=owner,
            frame=self.frames,
        )

    def _touch(self, turn: DraftTurn) -> None:
        self._touched[turn.position] = None

    def _built(self, turn: DraftTurn, abandoned: bool = False) -> TimelineTurn:
        return turn.built([call.built(self._status_of(turn, call, abandoned), turn.inherited) for call in turn.calls])

    def _status_of(self, turn: DraftTurn, call: DraftCall, abandoned: bool) -> CallStatus:
        if not call.open:
            return "replayed" if call.replayed else "done"
        is_last = bool(self._line) and self._line[-1] is turn
        if is_last and self._fold.status == "waiting":
            return "waiting"
        if call.begun is None:
            return "not started"
        runs = is_last and self._fold.status == "running" and call.lease == self._leases and not abandoned
        return "running" if runs else "in doubt"


def _match(calls: Sequence[DraftCall], blocks: Iterable[Block], now: int | None) -> None:
    """Store each tool result among these blocks in the draft of its call. The call of a result is the first in `calls`
    that has the result's id and no result yet.

    `now` is the time of the results in microseconds since 1970, if known.
    """
    for block in blocks:
        if isinstance(block, ToolResult):
            found = next((call for call in calls if call.open and call.call.id == block.call_id), None)
            if found is not None:
                found.finish(block, now)


def _place(happened: TimelineTurn | Mark) -> tuple[int, int]:
    """Return a key by which turns and marks can be sorted together: each turn before the marks that follow it."""
    return (happened.position, 1) if isinstance(happened, Mark) else (happened.position + 1, 0)
