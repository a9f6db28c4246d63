"""Fold the entries of a log: compute from them the state that the thread is in. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, cast

from clew.log.checkpoint import (
    EMPTY,
    Checkpoint,
    Fact,
    FoldedState,
    Kind,
    Present,
    Ranges,
    changing_in,
    first_of,
    last_of,
    snapshot_in,
)
from clew.log.entries import (
    Compacted,
    Described,
    Entry,
    InboxRead,
    LeaseTaken,
    MessageAdded,
    ModelCallRefused,
    ModelCallStarted,
    Posted,
    ProviderKey,
    Queued,
    Rewound,
    Spend,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    Streamed,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    UnknownEntry,
    Usage,
    WorkspaceChanging,
    WorkspaceSnapshot,
)
from clew.log.facts import Facts
from clew.log.open_turn import OpenTurn
from clew.log.outline import FactOutline, MessageRoles, ViewOutline
from clew.messages import Assistant, Block, Message, Tool, ToolCall, ToolResult, User, plain_text, tool_calls

__all__ = ["Fold", "fold"]

TITLE_LENGTH = 80
NewOutline = Callable[[Iterable[Message]], MessageRoles]


def fold(entries: Iterable[Entry | FoldedState], start: Checkpoint = EMPTY) -> Checkpoint:
    """Return the state that a thread is in after these entries, if its state before them was `start`. Pure: equal
    arguments give equal states."""
    running = Fold(start)
    running.push(entries)
    return running.checkpoint()


class Fold:
    """The state of a thread, to which log entries can be added. Adding takes no longer if the log is long."""

    __slots__ = (  # faster than a dictionary for this many attributes
        "_cache_read",
        "_cache_write",
        "_facts",
        "_history",
        "_marks",
        "_new_history",
        "_older",
        "_open",
        "_partial",
        "_reasoning",
        "_turn_grows",
        "_view_end",
        "_view_start",
        "agent",
        "cost_usd",
        "done_at",
        "in_flight",
        "inbox_read",
        "input_tokens",
        "limits",
        "model",
        "output_tokens",
        "parent",
        "queued",
        "reason",
        "seconds",
        "status",
        "system_prompt",
        "tags",
        "title",
        "tools",
        "unaccounted",
    )
    _view_end: int

    def __init__(self, start: Checkpoint = EMPTY, outline: NewOutline | None = None) -> None:
        """Begin with the state `start`. To save memory, give as `outline` a class such as `MessageOutline`, a list that
        holds empty messages instead of the real ones. The states that `checkpoint` returns have the empty ones too."""
        self._new_history = outline
        self._reset(start)

    def _reset(self, state: Checkpoint) -> None:
        self.agent = state.agent
        self.model = state.model
        self.system_prompt = state.system_prompt
        self.tools = state.tools
        self.limits = state.limits
        self.parent = state.parent
        self.title = state.title
        self.tags = state.tags
        self.status = state.status
        self.reason = state.reason
        self.input_tokens = state.usage.input_tokens
        self.output_tokens = state.usage.output_tokens
        self._cache_read = state.usage.cache_read_tokens
        self._cache_write = state.usage.cache_write_tokens
        self._reasoning = state.usage.reasoning_tokens
        self.cost_usd = state.cost_usd
        self.seconds = state.seconds
        self.done_at = state.done_at
        self.unaccounted = state.unaccounted
        self.in_flight = state.in_flight
        new = self._new_history
        self._history: list[Message] = list(state.history) if new is None else new(state.history)
        self._set_view(state.view)
        self._marks: list[Ranges] | ViewOutline = list(state.marks) if new is None else ViewOutline(state.marks)
        self._turn_grows = False
        self._facts = Facts(state.facts) if new is None else FactOutline(state.facts)
        self._open = OpenTurn(state)
        self._partial: list[Block] = list(state.partial)
        self.inbox_read = state.inbox_read
        self.queued = state.queued

    @property
    def turns(self) -> int:
        return len(self._marks) - 1

    @property
    def messages(self) -> int:
        """Number of messages in the thread's history, which holds every message ever recorded."""
        return len(self._history)

    @property
    def usage(self) -> Usage:
        return Usage(self.input_tokens, self.output_tokens, self._cache_read, self._cache_write, self._reasoning)

    def push(self, entries: Iterable[Entry | FoldedState]) -> None:
        """Add entries: change this object's state as each of them says, in order."""
        for kind, run in groupby(entries, type):
            if kind is MessageAdded:
                self._messages(run)
                continue
            for entry in run:
                _HANDLERS[kind](self, entry)

    def checkpoint(self) -> Checkpoint:
        """Return the current state of the thread as an immutable `Checkpoint`."""
        return self._checkpoint(tuple(self._history), tuple(self._marked()), self._facts.all())

    def outline(self) -> tuple[Checkpoint, bytes]:
        """Return the state with the fields `history`, `marks` and `facts` left empty, and a digest of what these three
        hold. Works only on a `Fold` that was made with the argument `outline=MessageOutline`."""
        parts: list[Any] = [self._history, self._marked(), self._facts]
        return self._checkpoint((), (), ()), b"".join(part.digest() for part in parts)

    def sketch(self, *, all_facts: bool = False) -> Checkpoint:
        """Return the current state in little memory: with empty messages, and with `marks` (what the model saw at the
        end of each turn) that can only be counted and read one by one. Leaves out facts (values that hold from a turn
        on) that hold no more, unless `all_facts`. Without the memory-saving `outline`, returns the complete state."""
        marks, facts = self._marked(), self._facts
        if isinstance(marks, list) or isinstance(facts, Facts):
            return self.checkpoint()
        kept = facts.all() if all_facts else facts.newest()
        return self._checkpoint(tuple(self._history), cast(Any, marks.copy()), kept)

    def _checkpoint(
        self, history: tuple[Message, ...], marks: tuple[Ranges, ...], facts: tuple[Fact, ...]
    ) -> Checkpoint:
        return Checkpoint(
            agent=self.agent,
            model=self.model,
            system_prompt=self.system_prompt,
            tools=self.tools,
            limits=self.limits,
            parent=self.parent,
            title=self.title,
            tags=self.tags,
            status=self.status,
            reason=self.reason,
            usage=self.usage,
            cost_usd=self.cost_usd,
            unaccounted=self.unaccounted,
            history=history,
            view=self._view(),
            marks=marks,
            facts=facts,
            open_message=self._open.message,
            intents=dict(self._open.intents),
            results=dict(self._open.results),
            steps={index: dict(steps) for index, steps in self._open.steps.items()},
            open_steps=dict(self._open.open_steps),
            in_flight=self.in_flight,
            seconds=self.seconds,
            done_at=self.done_at,
            partial=tuple(self._partial),
            inbox_read=self.inbox_read,
            queued=self.queued,
        )

    def present(self) -> Present:
        """Return the part of the current state that a run needs for its next model or tool call, in a time that depends
        on the number of messages that the model sees, not on the length of the log."""
        history = self._history
        return Present(
            messages=tuple([message for start, stop in self._view() for message in history[start:stop]]),
            turns=self.turns,
            calls=self._open.calls(history),
            workspace=snapshot_in(self._facts.value("workspace")),
            changing=changing_in(self._facts.value("changing")),
            usage=self.usage,
            cost_usd=self.cost_usd,
            seconds=self.seconds,
            inbox_read=self.inbox_read,
            queued=self.queued,
        )

    def _started(self, entry: ThreadStarted) -> None:
        self.agent = entry.agent
        self.model = entry.model
        self.system_prompt = entry.system_prompt
        self.tools = entry.tools
        self.limits = entry.limits
        self.parent = entry.parent or self.parent

    def _messages(self, entries: Iterable[Any]) -> None:
        """Add the messages of consecutive `MessageAdded` entries, in one loop, which is faster than a call for each."""
        history, marks = self._history, self._marks
        for entry in entries:
            message = entry.message
            if entry.usage is not None:
                self._spend(entry.usage, entry.cost_usd)
            kind = type(message)
            if kind is Tool:
                self._answer(message)
                continue
            if self._open.message >= 0:
                self._close_turn()
            if self._turn_grows:
                self._marked()
            place = len(history)
            if self._view_end == place:
                history.append(message)
                self._view_end = place + 1
            else:
                self._add(message)
            if kind is Assistant:
                self.in_flight = False
                if self._partial:
                    self._partial = []
                marks.append(())
                self._turn_grows = True
                if calls := [*map(type, message.content)].count(ToolCall):
                    self._open.begin(place, calls)
            elif not self.title and kind is User:
                self.title = " ".join(plain_text(message).split())[:TITLE_LENGTH]

    def _add(self, message: Message) -> None:
        """Append the message to the history (all messages ever recorded) and to the view (what the model sees)."""
        place = len(self._history)
        self._history.append(message)
        if self._view_end != place:
            self._set_view((*self._view(), (place, place + 1)))
        self._view_end = place + 1

    def _view(self) -> Ranges:
        """Return which messages the model sees, as ranges (start, stop) of indices in the history."""
        return (*self._older, (self._view_start, self._view_end)) if self._view_end >= 0 else self._older

    def _set_view(self, view: Ranges) -> None:
        self._older = view[:-1]
        self._view_start, self._view_end = view[-1] if view else (0, -1)

    def _marked(self) -> list[Ranges] | ViewOutline:
        """Return, for each turn, which messages the model saw at its end, as ranges (start, stop) of indices in the
        history. The ranges of the current turn change with every tool result, so only this method computes them."""
        if self._turn_grows:
            one_range = not self._older and self._view_end >= 0
            self._marks[-1] = ((self._view_start, self._view_end),) if one_range else self._view()
            self._turn_grows = False
        return self._marks

    def _add_results(self, message: Tool) -> None:
        """Add a tool message, the results of tool calls, to the turn with these calls. It then has no open calls."""
        self._add(message)
        self._turn_grows = True
        self._open.settle()

    def _answer(self, message: Tool) -> None:
        """Add a message with results of tool calls. If no call waits for a result, or the message answers all calls of
        the response at once, it is added unchanged. Otherwise each result goes to the waiting call with its id."""
        if self._open.message < 0:
            self._add(message)
            self._turn_grows = True
            return
        given = [block for block in message.content if type(block) is ToolResult]
        if not self._open.results and len(given) >= self._open.waiting:
            self._add_results(message)
            return
        calls = tool_calls(self._history[self._open.message])
        free = {index: call.id for index, call in enumerate(calls) if index not in self._open.results}
        for result in given:
            index = next((index for index, call_id in free.items() if call_id == result.call_id), None)
            if index is not None:
                del free[index]
                self._result(index, result)

    def _result(self, index: int, result: ToolResult) -> None:
        self._open.take_result(index, result)
        if self._open.waiting == 0:
            self._close_turn()

    def _close_turn(self) -> None:
        """End the wait for tool results of a turn. Those recorded so far become one message of the history."""
        if self._open.message < 0:
            return
        if results := self._open.results:
            self._add_results(Tool(tuple(results[index] for index in sorted(results))))
        else:
            self._open.settle()

    def _model_call(self, entry: ModelCallStarted) -> None:
        if self.in_flight:
            self.unaccounted += 1
        self.in_flight = True

    def _model_call_refused(self, entry: ModelCallRefused) -> None:
        self.in_flight = False

    def _spend(self, usage: Usage, cost_usd: float | None) -> None:
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self._cache_read += usage.cache_read_tokens
        self._cache_write += usage.cache_write_tokens
        self._reasoning += usage.reasoning_tokens
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd

    def _spent(self, entry: Spend) -> None:
        self._spend(entry.usage, entry.cost_usd)
        self.seconds += entry.seconds

    def _intent(self, entry: ToolIntent) -> None:
        self._open.take_intent(entry)

    def _outcome(self, entry: ToolOutcome) -> None:
        if self._open.has(entry):
            self._result(entry.index, entry.result)

    def _step_intent(self, entry: StepIntent) -> None:
        self._open.take_step_intent(entry)

    def _step_outcome(self, entry: StepOutcome) -> None:
        self._open.take_step(entry)

    def _workspace(self, entry: WorkspaceSnapshot) -> None:
        self._fact("workspace", "", [entry.digest, entry.files, entry.size])
        if self._facts.has("changing"):
            self._fact("changing", "", None)

    def _changing(self, entry: WorkspaceChanging) -> None:
        self._fact("changing", "", [entry.since, entry.empty] if entry.since > 0 else None)

    def _provider(self, entry: ProviderKey) -> None:
        plain = not (entry.native or entry.thread or entry.messages)
        value = entry.key if plain else [entry.key, entry.native, entry.thread, entry.messages]
        self._fact("provider", entry.provider, value)

    def _streamed(self, entry: Streamed) -> None:
        """Keep the blocks of a response that is still arriving. If a sub-agent said them, ignore them."""
        if not entry.call:
            self._partial += entry.blocks

    def _state(self, entry: StateSet) -> None:
        self._fact("state" if entry.scope == "thread" else "turn", entry.key, entry.value)

    def _fact(self, kind: Kind, key: str, value: Any) -> None:
        self._facts.add(Fact(self.turns, kind, key, value))

    def _described(self, entry: Described) -> None:
        self.title = self.title if entry.title is None else entry.title
        self.tags = self.tags if entry.tags is None else entry.tags

    def _status(self, entry: StatusChanged) -> None:
        self.status = entry.status
        self.reason = entry.reason
        if entry.status not in ("running", "queued"):
            self.queued = None
        if entry.status == "done":
            self.done_at = len(self._history)

    def _queue(self, entry: Queued) -> None:
        self.status = "queued"
        self.reason = entry.reason
        self.queued = entry

    def _read_inbox(self, entry: InboxRead) -> None:
        self.inbox_read = entry

    def _rewound(self, entry: Rewound) -> None:
        """Go back to an earlier point of the conversation: restore what the model saw at that point, and drop the open
        tool calls and the facts (values that hold from a turn on) of later turns."""
        self.in_flight = False
        self._partial = []
        self._marked()
        if entry.turn is not None and entry.turn < self.turns:
            self._open.settle()
            del self._marks[entry.turn + 1 :]
        if entry.turn is not None:
            self._set_view(self._marks[-1])
        elif entry.messages is not None:
            self._open.settle()
            self._cut(entry.messages)
        self._facts.cut(self.turns)

    def _cut(self, messages: int) -> None:
        """Keep the first `messages` of the messages that the model sees, and the turns whose responses are in them."""
        before = [place for start, stop in self._view() for place in range(start, stop)]
        if messages >= len(before):
            return
        self._set_view(first_of(self._view(), messages))
        dropped = sum(type(self._history[place]) is Assistant for place in before[messages:])
        del self._marks[max(1, len(self._marks) - dropped) :]
        if messages == 0:
            del self._marks[1:]
            self._marks[0] = ()
        elif type(self._history[before[messages - 1]]) in (Assistant, Tool):
            self._marks[-1] = self._view()

    def _compacted(self, entry: Compacted) -> None:
        """Replace the messages that the model sees by a summary and the newest `entry.keep` of them. What the model saw
        at the ends of earlier turns stays recorded, so that a rewind to such a turn restores it."""
        if entry.usage is not None:
            self._spend(entry.usage, entry.cost_usd)
            self.in_flight = False
        self._marked()
        kept = last_of(self._view(), entry.keep)
        place = len(self._history)
        self._history.append(entry.summary)
        self._set_view(((place, place + 1), *kept))

    def _lease(self, entry: LeaseTaken) -> None:
        self.status = "running"
        self.reason = ""

    def _folded(self, entry: FoldedState) -> None:
        self._reset(entry.state)


_HANDLERS: dict[type, Callable[[Fold, Any], None]] = {
    Compacted: Fold._compacted,
    Described: Fold._described,
    FoldedState: Fold._folded,
    InboxRead: Fold._read_inbox,
    LeaseTaken: Fold._lease,
    ModelCallRefused: Fold._model_call_refused,
    ModelCallStarted: Fold._model_call,
    Posted: lambda fold, entry: None,
    ProviderKey: Fold._provider,
    Queued: Fold._queue,
    Rewound: Fold._rewound,
    Spend: Fold._spent,
    StateSet: Fold._state,
    StatusChanged: Fold._status,
    StepIntent: Fold._step_intent,
    StepOutcome: Fold._step_outcome,
    Streamed: Fold._streamed,
    ThreadStarted: Fold._started,
    ToolIntent: Fold._intent,
    ToolOutcome: Fold._outcome,
    UnknownEntry: lambda fold, entry: None,
    WorkspaceChanging: Fold._changing,
    WorkspaceSnapshot: Fold._workspace,
}
