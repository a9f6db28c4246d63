"""`Checkpoint`, the complete state of a thread, which is computed from the entries of the thread's log, and the types
of the values in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from clew.log.entries import (
    Compacted,
    InboxRead,
    MessageAdded,
    ModelCallStarted,
    ProviderKey,
    Queued,
    StateSet,
    StatusChanged,
    StepIntent,
    StepOutcome,
    Streamed,
    ThreadStarted,
    ToolIntent,
    ToolOutcome,
    Usage,
    WorkspaceChanging,
    WorkspaceSnapshot,
)
from clew.messages import Assistant, Block, Message, ToolCall, ToolResult, tool_calls

__all__ = [
    "EMPTY",
    "PROMPT_IDS",
    "TURN_MARK",
    "Call",
    "Checkpoint",
    "Fact",
    "FoldedState",
    "Kind",
    "Present",
    "Ranges",
    "changing_in",
    "count_kept",
    "first_of",
    "is_barrier",
    "last_of",
    "open_calls",
    "provider_key",
    "snapshot_in",
]

Ranges = tuple[tuple[int, int], ...]
"""Messages of the history, as ranges (start, stop) of their indices, in order. The message at `stop` is not included.
"""


def first_of(ranges: Ranges, count: int) -> Ranges:
    """Return the first `count` of the messages that `ranges` name, as ranges again. If there are fewer messages, return
    all of them. A range is a pair of indices in the thread's history: that of its first message, and that of the
    message after its last."""
    kept: list[tuple[int, int]] = []
    for start, stop in ranges:
        if count <= 0:
            break
        kept.append((start, min(stop, start + count)))
        count -= stop - start
    return tuple(kept)


def last_of(ranges: Ranges, count: int) -> Ranges:
    """Return the last `count` of the messages that `ranges` name, as ranges again. If there are fewer messages, return
    all of them. A range is a pair of indices in the thread's history: that of its first message, and that of the
    message after its last."""
    kept: list[tuple[int, int]] = []
    for start, stop in reversed(ranges):
        if count <= 0:
            break
        kept.append((max(start, stop - count), stop))
        count -= stop - start
    return tuple(reversed(kept))


TURN_MARK = "clew:turn:"
"""Prefix of the keys under which Clew keeps its own facts about one prompt. After it comes the prompt's index in the
history."""

PROMPT_IDS = "clew:prompt-ids"
"""Key in a thread's state under which Clew lists the ids of the prompts that wait, in order.

A prompt waits until the calls of the turn before it are done.
"""

ANSWERS = "clew:answered"
"""Key in a thread's state under which Clew keeps a person's last answers, by question id.

It lets a user give the same answers again after a stop without an error.
"""

Kind = Literal["state", "turn", "workspace", "provider", "changing"]


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value in a thread's state that holds from turn `turn` on, until a later fact with the same kind and key
    replaces it. An example is a value that a tool set in the thread's state, or the newest snapshot of the files.

    If the thread is rewound to the end of an earlier turn than `turn`, the fact is removed.
    """

    turn: int
    kind: Kind
    key: str
    value: Any


class Call(msgspec.Struct, frozen=True):
    """A tool call of the open turn (the turn whose calls are not all done), and how far the call got.

    Its status is "in_doubt" if the log says that the call was about to run, and does not say how the call ended: its
    effect may or may not have happened.
    """

    message: int
    index: int
    call: ToolCall
    status: Literal["done", "not_started", "in_doubt"]
    key: str = ""
    attempt: int = 0
    result: ToolResult | None = None
    steps: Mapping[str, Any] = {}
    open_steps: tuple[str, ...] = ()


def open_calls(
    history: Sequence[Message],
    place: int,
    intents: Mapping[int, tuple[str, int]],
    results: Mapping[int, ToolResult],
    steps: Mapping[int, Mapping[str, Any]],
    open_steps: Mapping[int, tuple[str, ...]],
) -> tuple[Call, ...]:
    """Return the tool calls of the message at index `place` of the history, in order, with what is known about each.
    Empty if `place` is -1, which means that no call is open.

    The other arguments have an item for each call about which something is known, by the call's index in the message.
    `intents` has the idempotency key and the number of the latest attempt of a call that may have started, and
    `results` the result of a call that is done. `steps` has the recorded values of the call's steps (sections of a
    tool's code), by key, and `open_steps` the keys of the steps that began and have no recorded value.
    """
    if place < 0:
        return ()
    found = []
    for index, call in enumerate(tool_calls(history[place])):
        result = results.get(index)
        key, attempt = intents.get(index, ("", 0))
        found.append(
            Call(
                message=place,
                index=index,
                call=call,
                status="done" if result else "in_doubt" if index in intents else "not_started",
                key=key,
                attempt=attempt,
                result=result,
                steps=dict(steps.get(index, {})),
                open_steps=open_steps.get(index, ()),
            )
        )
    return tuple(found)


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The complete state of a thread at one point of its log. The same log gives the same checkpoint on every machine.

    `messages` is the conversation as the model sees it. `history` holds every message ever recorded, also those that a
    rewind or a compaction took out of the conversation. A rewind never reduces usage and cost: they have been paid.
    """

    agent: str = ""
    model: str = ""
    system_prompt: str = ""
    tools: dict[str, str] = {}
    limits: dict[str, Any] = {}
    parent: tuple[str, int] | None = None
    title: str = ""
    tags: dict[str, str] = {}
    status: Literal["running", "waiting", "interrupted", "failed", "done", "queued"] = "interrupted"
    reason: str = ""
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    unaccounted: int = 0
    """Number of model calls without a recorded response that may have been charged. Refused calls are not counted."""
    history: tuple[Message, ...] = ()
    view: Ranges = ()
    marks: tuple[Ranges, ...] = ((),)
    """For each turn, the messages that the model saw at its end, as ranges of indices in the history.

    The first item is for turn 0, before any response. A rewind restores one of the items.
    """
    facts: tuple[Fact, ...] = ()
    open_message: int = -1
    """Index in the history of the message whose tool calls are not all done, or -1 if there is none."""
    intents: dict[int, tuple[str, int]] = {}
    """For each call of the open message that may have started: its idempotency key and the number of its latest
    attempt.

    The open message is the one at `open_message`. The keys of the dictionary are the indices of the calls in it.
    """
    results: dict[int, ToolResult] = {}
    steps: dict[int, dict[str, Any]] = {}
    open_steps: dict[int, tuple[str, ...]] = {}
    in_flight: bool = False
    """True if a model call was started and not answered yet."""
    seconds: float = 0.0
    """Seconds that all runs together worked on this thread."""
    done_at: int = -1
    """Number of messages in the history when the status last became "done", or -1 if it never did."""
    partial: tuple[Block, ...] = ()
    """The blocks that have arrived of a response that is not complete yet, in the order of their arrival."""
    inbox_read: InboxRead | None = None
    """How far the thread's inbox was read; None if nothing was ever taken out of it. A rewind does not change this."""
    queued: Queued | None = None
    """The place of the thread in the queue of the workers. None if no worker has to run it."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model sees it, after rewinds and compactions."""
        if self.view == ((0, len(self.history)),):
            return self.history
        return tuple(message for start, stop in self.view for message in self.history[start:stop])

    @property
    def turns(self) -> int:
        """Number of model responses so far, also those that a compaction replaced by a summary. Responses that a rewind
        took back do not count."""
        return len(self.marks) - 1

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls of the turn whose calls are not all done, in order.

        Empty if there is no such turn. A turn's calls leave this list once all of them are done, and their results have
        become a message.
        """
        return open_calls(self.history, self.open_message, self.intents, self.results, self.steps, self.open_steps)

    @property
    def state(self) -> dict[str, Any]:
        """The values that are set in the thread's state, for example by tools, by key."""
        return {fact.key: fact.value for fact in self.facts if fact.kind == "state"}

    @property
    def metadata(self) -> dict[int, dict[str, Any]]:
        """For each turn, by its number, the metadata that tools recorded in that turn, as a dict. What Clew itself
        records about prompts is left out."""
        found: dict[int, dict[str, Any]] = {}
        for fact in self.facts:
            if fact.kind == "turn" and not fact.key.startswith(TURN_MARK):
                found.setdefault(fact.turn, {})[fact.key] = fact.value
        return found

    @property
    def workspace(self) -> WorkspaceSnapshot | None:
        """The entry in the log that names the newest snapshot of the workspace's files, or None if there is no
        snapshot."""
        return snapshot_in(self._newest("workspace"))

    @property
    def changing(self) -> WorkspaceChanging | None:
        """The log's entry which says that tool calls may have changed files that are in no snapshot yet, and since
        which turn.

        None if the newest snapshot holds all changes.
        """
        return changing_in(self._newest("changing"))

    def _newest(self, kind: Kind) -> Any:
        return next((fact.value for fact in reversed(self.facts) if fact.kind == kind), None)

    @property
    def files_turn(self) -> int:
        """Number of the turn at whose end the workspace's files were as the newest snapshot holds them. That is the
        newest turn or, if tool calls may have changed files since the snapshot, the turn before the first of those
        calls. 0 stands for the time before the first turn."""
        return _files_turn(self.turns, self.changing)

    @property
    def provider_keys(self) -> dict[str, str]:
        """For each outside agent (such as Claude Code) that ever had this conversation, by its name: the id under which
        the outside agent knows this conversation."""
        return {name: known.key for name, known in self.providers.items()}

    @property
    def providers(self) -> dict[str, ProviderKey]:
        """For each outside agent (such as Claude Code) that ever had this conversation, by its name: the newest log
        entry with the id under which the agent knows the conversation."""
        return {fact.key: provider_key(fact) for fact in self.facts if fact.kind == "provider"}


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a thread's state that a run needs for its next model or tool call. Each field means the same as the
    field or property of `Checkpoint` (the complete state) with the same name.

    A checkpoint holds every message ever recorded, so making a checkpoint takes longer the longer the log is. A
    `Present` holds only the messages that the model sees.
    """

    messages: tuple[Message, ...] = ()
    turns: int = 0
    calls: tuple[Call, ...] = ()
    workspace: WorkspaceSnapshot | None = None
    changing: WorkspaceChanging | None = None
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    seconds: float = 0.0
    inbox_read: InboxRead | None = None
    queued: Queued | None = None

    @property
    def files_turn(self) -> int:
        """Number of the turn at whose end the workspace's files were as the newest snapshot holds them. That is the
        newest turn or, if tool calls may have changed files since the snapshot, the turn before the first of those
        calls. 0 stands for the time before the first turn."""
        return _files_turn(self.turns, self.changing)


def snapshot_in(value: Any) -> WorkspaceSnapshot | None:
    """Return a `WorkspaceSnapshot` entry, which names a snapshot of the workspace's files. `value` is the list of the
    entry's fields in order, as a thread's state holds it. Returns None if `value` is None."""
    return WorkspaceSnapshot(*value) if value else None


def changing_in(value: Any) -> WorkspaceChanging | None:
    """Return a `WorkspaceChanging` entry, which says since which turn tool calls may have changed files. `value` is the
    list of the entry's fields in order, as a thread's state holds it. Returns None if `value` is None: then no files
    have changed since the newest snapshot."""
    return WorkspaceChanging(*value) if value else None


def _files_turn(turns: int, changing: WorkspaceChanging | None) -> int:
    return turns if changing is None else changing.since - 1


def provider_key(fact: Fact) -> ProviderKey:
    """Return the `ProviderKey` entry that a fact of kind "provider" was made from. A fact is a value of the thread's
    state that holds from a turn on. The entry names an outside program, such as Claude Code, and the id under which
    that program knows the conversation.

    The fact's key is the name of the program. Its value is the id alone if the entry's other fields are empty, else a
    list of the id and the other fields.
    """
    return (
        ProviderKey(fact.key, *fact.value)
        if isinstance(fact.value, list | tuple)
        else ProviderKey(fact.key, fact.value)
    )


EMPTY = Checkpoint()


class FoldedState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="folded"):
    """A thread's complete state, stored as an entry in the thread's log. Code that loads the thread can start here
    instead of at the log's beginning."""

    state: Checkpoint


def count_kept(entries: Iterable[object]) -> int:
    """Return how many of these entries have content that becomes part of a thread's state, such as a message or a
    tool's result. Entries that only note an event, such as that a tool is about to run, do not count. The number is
    used to estimate how large the state is."""
    return sum(map(_KEPT.__contains__, map(type, entries)))


_KEPT = {MessageAdded, ToolOutcome, Compacted, StateSet, Streamed, ThreadStarted, FoldedState}


def is_barrier(entry: object) -> bool:
    """Return whether the next action has to wait until this entry is durable. For example, a tool runs only once the
    record that it is about to run is durable."""
    if isinstance(entry, MessageAdded):
        return isinstance(entry.message, Assistant)
    return isinstance(
        entry,
        Compacted | ModelCallStarted | Queued | StatusChanged | StepIntent | StepOutcome | ToolIntent | ToolOutcome,
    )
