"""Read a thread's log as a timeline for people: its turns with their times, and marks for what happened between them.

Marks say where the thread crashed, was resumed, rewound, compacted or moved. Every thread display uses this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from clew.checkpointers import Checkpointer, Head, Status
from clew.errors import ThreadNotFound
from clew.log import (
    FIRST,
    Checkpoint,
    Compacted,
    Fold,
    FoldedState,
    Frame,
    LeaseTaken,
    Logged,
    MessageAdded,
    MessageRoles,
    ModelCallRefused,
    ModelCallStarted,
    Queued,
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
from clew.messages import Assistant, Message, Tool, tool_calls
from clew.threads.frames import Source
from clew.threads.leases import LEASE_TIME, is_crashed
from clew.threads.reader import decoded_frames
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
    match_results,
    moment,
    place_of,
)
from clew.threads.views.timeline_window import KeptTurns, Window

__all__ = [
    "CallStatus",
    "Mark",
    "MarkKind",
    "Timeline",
    "TimelineCall",
    "TimelineReader",
    "TimelineTurn",
    "Window",
    "read_timeline",
    "reader_of",
]


async def read_timeline(
    store: Checkpointer, thread_id: str, *, start: int = 0, stop: int | None = None, head: Head | None = None
) -> Timeline:
    """Return the timeline of a thread (its turns, and marks for events such as a crash), or only of its turns at the
    positions from `start` up to, but not including, `stop`.

    Positions count all turns from 0, also those that a rewind took back. A negative `start` counts from the end. Takes
    no lease and changes nothing. The log is read from its beginning and checked; all its messages are in memory then.
    The log is read up to `head`; if that is not given, the thread's head is read from the store first.
    """
    reader, head = await reader_of(store, thread_id, head=head)
    return reader.timeline(start, stop, abandoned=is_crashed(head))


async def reader_of(
    store: Source, thread_id: str, *, head: Head | None = None, reader: TimelineReader | None = None
) -> tuple[TimelineReader, Head]:
    """Return a reader that has made a timeline (turns, and marks for events such as a crash) of the thread's whole log,
    and the thread's head at that time.

    If `reader` has read a part of the log, only the rest is read, up to `head`, by default the current head."""
    head = head or await store.head(thread_id)
    if head is None:
        raise ThreadNotFound(thread_id)
    reader = reader or TimelineReader(thread_id)
    previous = reader.digest if reader.frames else FIRST
    async for _, frame in decoded_frames(store, head, start=reader.frames, previous=previous):
        reader.take(frame)
    return reader, head


class TimelineReader:
    """Reads a log frame by frame from its first frame on, and keeps the timeline of what it has read: the turns, and
    marks for what happened between them, such as a crash. To follow a growing log, pass each new frame to `feed`.

    With a `window`, only the turns that it names are kept, and the marks after them, to save memory. Then the messages
    of the `checkpoint` are empty, except those that `keep_message` returns True for.
    """

    def __init__(
        self,
        thread_id: str,
        window: Window | None = None,
        *,
        keep_message: Callable[[Message], bool] | None = None,
        on_settled: Callable[[TimelineTurn, Sequence[Mark]], None] | None = None,
    ) -> None:
        """Prepare to read the log of this thread. `window` says which turns are kept; None keeps all. With a window,
        messages in the thread's state are empty, except those for which `keep_message` returns True. `on_settled` is
        called with each turn that leaves the window, and the marks (events such as a crash) after it. A rewind can
        still change such a turn; `KeptTurns.changed_late` has the positions of those that it changed."""
        self.thread_id = thread_id
        self.frames = 0
        """Number of frames read so far."""
        self.digest = b""
        """Digest of the last frame read. The next frame must follow it."""
        self._window = window
        self._fold = Fold(outline=None if window is None else partial(MessageRoles, keep=keep_message))
        settled = None if on_settled is None else lambda turn, marks: on_settled(self._built(turn), marks)
        self._turns = KeptTurns(window, settled)
        self._new_marks: list[Mark] = []
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
        self._touched: dict[int, DraftTurn] = {}

    @property
    def checkpoint(self) -> Checkpoint:
        """The thread's state after the frames read so far. If only some turns are kept, most of its messages are empty."""
        return self.state()

    def state(self, *, all_facts: bool = False) -> Checkpoint:
        """Return the thread's state after the frames read so far. A reader with a `window` leaves out most messages.
        Without `all_facts` it also leaves out the metadata of turns, and values that newer ones have replaced."""
        return self._fold.checkpoint() if self._window is None else self._fold.sketch(all_facts=all_facts)

    @property
    def total(self) -> int:
        """Number of turns so far, including those that a rewind took back."""
        return self._turns.total

    @property
    def turns(self) -> KeptTurns:
        """The turns kept: all, or those in the window. Their `len` counts every turn that was not rewound."""
        return self._turns

    def feed(self, frame: Frame) -> list[TimelineTurn | Mark]:
        """Read the next frame of the log. Return, in order, the turns that it added or changed, as they are now, and
        the marks (such as a crash or a resume) that it added."""
        self.take(frame)
        changed: list[TimelineTurn | Mark] = [self._built(turn) for turn in self._touched.values()]
        return sorted([*changed, *self._new_marks], key=place_of)

    def take(self, frame: Frame) -> None:
        """Add the next frame of the log to the timeline. Unlike `feed`, returns no changed turns, and so is faster."""
        self._now = frame.time
        self._new_marks, self._touched = [], {}
        for entry in frame.entries:
            self._take(entry)
        self.frames += 1
        self.digest = frame.digest
        self._before = frame.time

    def timeline(self, start: int = 0, stop: int | None = None, *, abandoned: bool = False) -> Timeline:
        """Return the timeline of the turns at the positions from `start` up to, but not including, `stop`. Positions
        count all turns from 0; a negative one counts from the end.

        `abandoned` says that no live process runs the thread although its status is running. Then the timeline ends
        with a mark that says that the process crashed. Turns outside the reader's window are left out.
        """
        start, stop, _ = slice(start, stop).indices(self.total)
        stop = max(start, stop)
        marks = [*self._turns.marks, self._crash()] if abandoned else self._turns.marks
        at_end = stop == self.total
        state = self.checkpoint
        awaited = self._fold.in_flight and not abandoned and at_end
        return Timeline(
            thread_id=self.thread_id,
            turns=tuple(self._built(turn, abandoned) for turn in self._turns.between(start, stop)),
            marks=tuple(mark for mark in marks if is_beside(mark.position, start, stop)),
            start=start,
            stop=stop,
            total=self.total,
            frames=self.frames,
            snapshot=self._first_snapshot,
            pending=tuple(self._pending) if at_end else (),
            partial=state.partial if at_end else (),
            asked_at=moment(self._asked) if awaited else None,
            checkpoint=state,
        )

    def _take(self, entry: Logged) -> None:
        if isinstance(entry, FoldedState):
            if not self.frames and not self.total:
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
        elif isinstance(entry, StatusChanged | Queued):
            self._status("queued" if isinstance(entry, Queued) else entry.status, entry.reason)
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
        elif isinstance(entry, Spend) and entry.usage != Usage() and self._turns.last and not self._pending:
            self._turns.last.spend(entry.usage, entry.cost_usd)  # a prompt without a response does not belong to a turn
            self._touch(self._turns.last)

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
            self._steps.clear()
            self._turns.add(turn)
            self._touch(turn)

    def _results(self, message: Tool) -> None:
        """Record tool results that came as a message, as from agents that write no entries for single calls."""
        if (turn := self._turns.last) is not None:
            match_results([call for call in turn.calls if call.open], message.content, self._now)
            self._touch(turn)

    def _open_call(self, message: int, index: int) -> DraftCall | None:
        turn = self._turns.last
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
        """Add the mark "answered" if a step of a call has an outcome but no start: it is a person's answer."""
        if (entry.message, entry.index, entry.key) not in self._steps:
            self._mark("answered", "a person answered")

    def _tell_refusal(self, end: str = "") -> None:
        """Add a mark to the timeline if the model's vendor refused the last request, unless the reason for which the run
        ended, `end`, already contains the vendor's words."""
        if self._refused and self._refused not in end:
            self._mark("refused", f"refused: {self._refused}")
        self._refused = ""

    def _lease(self, entry: LeaseTaken, status: str) -> None:
        if entry.token and entry.token == self._token:  # the holder took its own lease again, not renewed in time
            return
        self._token = entry.token
        self._tell_refusal()
        first, given_back = self._leases == 0, status != "running"
        idle = max(0, self._now - self._before)
        if first and not self.total and not self._turns.has_marks:
            self._mark("started", f"started by {entry.owner}", owner=entry.owner)
        elif not first and not given_back:
            self._lost_holder(entry, idle)
        if not first or self.total:
            same = entry.owner == self._owner
            by = "the same process" if same else entry.owner
            pause = idle / 1e6 if self._before else None
            self._mark("resumed", f"resumed by {by}", owner=entry.owner, same_process=same, seconds=pause)
        self._leases += 1
        self._owner = entry.owner
        self._asked = None
        if self._turns.last is not None and self._turns.last.open:
            self._turns.last.idle += idle
            for call in self._turns.last.calls:
                call.replayed = call.replayed or not call.open
                call.doubted = call.doubted or (call.open and call.begun is not None and status != "waiting")
            self._touch(self._turns.last)

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
            self._keep(self._crash())

    def _crash(self) -> Mark:
        return self._make_mark(
            "crashed", f"{self._owner or 'its process'} ended without a word{self._doing()}", self._before, self._owner
        )

    def _doing(self) -> str:
        turn = self._turns.last
        if turn is not None and turn.open:
            names = dict.fromkeys(call.call.name for call in turn.calls if call.open and call.begun is not None)
            return f" while it ran {', '.join(names)}" if names else f" before the calls of turn {turn.number} began"
        return " while the model was asked" if self._asked is not None else ""

    def _status(self, status: Status, reason: str) -> None:
        if status != "running":
            self._tell_refusal(reason)
            self._mark(status, f"{status}: {reason}" if reason else status, owner=self._owner)
            self._asked = None
            if self._turns.last is not None and self._turns.last.open:
                self._touch(self._turns.last)

    def _started(self, entry: ThreadStarted) -> None:
        provider = str(entry.limits.get("provider") or "clew")
        if self._provider is None:
            if entry.parent is not None and not self.total:
                self._mark(
                    "called", f"called from turn {entry.parent[1]} of {entry.parent[0]}", to_turn=entry.parent[1]
                )
        elif provider != self._provider:
            self._mark("moved", f"moved from {self._provider} to {provider}")
        elif self.total:
            model = f"goes on with {entry.model or 'another model'}"
            self._mark("changed", f"{model}: its settings are not those of before")
        self._provider = provider

    def _rewind(self, before: int) -> None:
        after = self._fold.turns
        self._pending, self._asked = [], None
        self._tell_refusal()
        for turn in self._turns.rewind(after):
            self._touched[turn.position] = turn
        self._mark("rewound", f"rewound from turn {before} to turn {after}", to_turn=after, turn=before)

    def _said_about(self, entry: StateSet) -> None:
        """Add a value to the metadata of the current turn if a tool has set it there, and not Clew itself."""
        if entry.scope == "turn" and self._turns.last is not None and not entry.key.startswith("clew:"):
            self._turns.last.metadata[entry.key] = entry.value
            self._touch(self._turns.last)

    def _snapshot(self, entry: WorkspaceSnapshot) -> None:
        if self._turns.last is not None:
            self._turns.last.snapshot = entry
            self._touch(self._turns.last)
        else:
            self._first_snapshot = entry

    def _inherit(self, state: Checkpoint) -> None:
        """Add the turns of `state`, with which a log (as that of a fork) begins. Their times are not known."""
        self._fold.push([FoldedState(state)])
        self._provider = str(state.limits.get("provider") or "clew")
        metadata = state.metadata
        snapshots = {fact.turn: WorkspaceSnapshot(*fact.value) for fact in state.facts if fact.kind == "workspace"}
        self._first_snapshot = snapshots.get(0)
        end = 0
        for number, view in enumerate(state.marks[1:], 1):
            seen = [place for start, stop in view for place in range(max(start, end), stop)]
            place = max((at for at in seen if isinstance(state.history[at], Assistant)), default=-1)
            response = state.history[place] if place >= 0 else Assistant(())
            turn = DraftTurn(self.total, number, place, response, self.frames)  # type: ignore[arg-type] # an Assistant, as chosen above
            turn.inherited = True
            turn.metadata = metadata.get(number, {})
            turn.snapshot = snapshots.get(number)
            turn.prompts = tuple(state.history[at] for at in seen if at < place)
            turn.calls = [DraftCall(index, call, None) for index, call in enumerate(tool_calls(response))]
            for at in seen:
                if at > place and isinstance(results := state.history[at], Tool):
                    match_results(turn.calls, results.content, None)
            end = max(seen, default=end - 1) + 1
            self._turns.add(turn)
        self._inherit_open(state)
        self._pending = [state.history[place] for start, stop in state.view for place in range(max(start, end), stop)]
        if state.parent is not None:
            parent, turn_number = state.parent
            at = min(turn_number, self.total)
            text = f"forked from turn {turn_number} of {parent}"
            self._mark("forked", text, position=at, turn=at, to_turn=turn_number)

    def _inherit_open(self, state: Checkpoint) -> None:
        if state.open_message < 0 or self._turns.last is None:
            return
        for call in self._turns.last.calls:
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
        self._keep(msgspec.structs.replace(made, **changes))

    def _keep(self, mark: Mark) -> None:
        self._new_marks.append(mark)
        self._turns.mark(mark)

    def _make_mark(self, kind: MarkKind, text: str, at: int, owner: str) -> Mark:
        within = self._turns.last is not None and self._turns.last.open
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
        self._turns.changed(turn)
        if turn.frame >= 0:  # an empty turn that stands for one that is not kept has no frame
            self._touched[turn.position] = turn

    def _built(self, turn: DraftTurn, abandoned: bool = False) -> TimelineTurn:
        return turn.built([call.built(self._status_of(turn, call, abandoned), turn.inherited) for call in turn.calls])

    def _status_of(self, turn: DraftTurn, call: DraftCall, abandoned: bool) -> CallStatus:
        if not call.open:
            return "replayed" if call.replayed else "done"
        is_last = self._turns.last is turn
        if is_last and self._fold.status == "waiting":
            return "waiting"
        if call.begun is None:
            return "not started"
        runs = is_last and self._fold.status == "running" and call.lease == self._leases and not abandoned
        return "running" if runs else "in doubt"
