"""How a saved state of a Locus agent is recorded in a thread: the log entries that make it the state of the thread, and
a record of the fields that Clew itself does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from clew._runtime.clock import now
from clew.checkpointers import Head
from clew.compat.locus.conversion import (
    added_messages,
    conversation_of,
    is_answered,
    shared_with,
    split_prompt,
    state_of,
)
from clew.compat.locus.state import AgentState
from clew.errors import Corrupt, InvalidInput
from clew.log import Checkpoint, Logged, Rewound, Spend, StateSet, StatusChanged, ThreadStarted, Usage, fold
from clew.log.checkpoint import Ranges
from clew.messages import Message

__all__ = ["KEPT", "Kept", "check_state", "check_values", "dated", "entries_for", "kept_in", "newest"]

KEPT = "clew:locus:"
"""Prefix of the names of the thread's values that hold a `Kept`. After it comes the checkpoint id."""

_CHANGING = frozenset(
    {
        "messages",
        "metadata",
        "iteration",
        "tool_executions",
        "tool_history",
        "reasoning_steps",
        "total_tokens_used",
        "prompt_tokens_used",
        "completion_tokens_used",
        "cache_creation_tokens_used",
        "cache_read_tokens_used",
        "cost_usd_used",
        "updated_at",
    }
)
"""The fields that change with every turn. Once an agent has gone on with a thread, the log knows them better than the
state that was saved before."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one saved state of a Locus agent: when it was saved, where in the thread's history its messages
    are, and those of its fields that do not follow from the messages. The method `state` returns the state itself."""

    at: datetime
    since: int
    """The number of the turn with which the thread and this state parted. Later turns were added with the state."""
    turn: int
    """How many turns the state has."""
    end: int
    """Number of messages in the thread's history when the state was saved."""
    view: Ranges
    """The messages of the state, as ranges (start, stop) of indices in the thread's history."""
    prompt: str = ""
    """The system prompt of the state."""
    metadata: dict[str, Any] = {}
    """The metadata that was given with the state, and what was given with earlier ones and not replaced since."""
    other: dict[str, Any] = {}
    """The fields of the state that do not follow from its messages. The messages themselves are among them only if they
    are in an order that no conversation of Clew has, such as results before their calls."""

    def state(self, thread_id: str, history: Sequence[Message]) -> AgentState:
        """Return the agent's state that this record describes, as it was saved. The record names messages by their
        indices in `history`, which holds every message ever recorded in the thread."""
        return AgentState.from_checkpoint({**self._plain(thread_id, history), **self.other})

    def _plain(self, thread_id: str, history: Sequence[Message]) -> dict[str, Any]:
        seen = [message for start, stop in self.view for message in history[start:stop]]
        return state_of(thread_id, Checkpoint(system_prompt=self.prompt), seen).to_checkpoint()

    def holding(self, thread_id: str, history: Sequence[Message], state: AgentState) -> Kept:
        """Return a copy of this record whose field `other` has those fields of `state` that cannot be computed from the
        rest of the record and the thread's messages. So the method `state` of the copy returns a state equal to
        `state`, if it is given the same `thread_id` and `history`. `history` holds every message ever recorded in the
        thread."""
        plain = self._plain(thread_id, history)
        other = {key: value for key, value in state.to_checkpoint().items() if value != plain[key]}
        return msgspec.structs.replace(self, other=other)


def check_state(state: AgentState) -> None:
    """Raise `InvalidInput` if a part of this state cannot be recorded in a thread, because it cannot be written as JSON
    or because a name in its metadata is not allowed."""
    check_values(state.metadata)
    try:
        state.to_checkpoint()
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidInput(f"this state cannot be stored as JSON: {error}") from None


def check_values(values: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if these values cannot be kept with a thread: if a name is not a text or begins with
    `clew:`, or if a value cannot be written as JSON."""
    for key, value in values.items():
        if not isinstance(key, str) or key.startswith("clew:"):
            raise InvalidInput(f"metadata: {key!r} is no name for a value: names that begin with clew: are Clew's own")
        try:
            msgspec.json.encode(value)
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidInput(f"metadata: {key} is not made of texts, numbers, lists and dicts: {error}") from None


def kept_in(state: Checkpoint) -> dict[str, Kept]:
    """Return the records of the states of a Locus agent that were saved in a thread, by their ids, in the order in
    which they were saved. A record says where in the thread the messages of a saved state are. `state` is the thread's
    state in Clew. Raises `Corrupt` if a record cannot be read."""
    found: dict[str, Any] = {}
    for fact in state.facts:
        if fact.kind == "state" and fact.key.startswith(KEPT):
            found.pop(fact.key, None)
            found[fact.key] = fact.value
    kept = {key.removeprefix(KEPT): value for key, value in found.items() if value is not None}
    try:
        return {name: msgspec.convert(value, Kept, strict=False) for name, value in kept.items()}
    except msgspec.ValidationError as error:
        raise Corrupt(f"the saved states of a Locus agent are on record, but one cannot be read: {error}") from None


def entries_for(
    thread_id: str, before: Checkpoint, state: AgentState, name: str, metadata: dict[str, Any]
) -> list[Logged]:
    """Return the entries that make `state` the state of a thread and record it under the id `name`. `before` is the
    state in which the thread is, and `metadata` is what the user has given with `state`."""
    prompt, messages = split_prompt(state.messages)
    shared, place = shared_with(before.messages, messages)
    entries: list[Logged] = []
    if (state.agent_id or before.agent, prompt) != (before.agent, before.system_prompt):
        entries.append(
            ThreadStarted(
                state.agent_id or before.agent, before.model, prompt, before.tools, before.limits, before.parent
            )
        )
    saved = kept_in(before)
    if shared < len(before.messages):  # a rewind forgets the values of later turns, and ids of states stay
        entries.append(Rewound(messages=shared))
        entries += [StateSet(KEPT + other, msgspec.to_builtins(kept)) for other, kept in saved.items()]
    parted = fold(entries, before)
    added = conversation_of(messages[place:], state.tool_executions)
    entries += added_messages(added, len(before.history))
    entries += _values(parted, state)
    entries += _spent(before, state)
    entries.append(StatusChanged("done" if is_answered([*before.messages[:shared], *added]) else "interrupted"))
    after = fold(entries, before)
    kept = Kept(
        at=now(),
        since=parted.turns,
        turn=after.turns,
        end=len(after.history),
        view=after.view,
        prompt=prompt,
        metadata={**(next(reversed(saved.values())).metadata if saved else {}), **metadata},
    ).holding(thread_id, after.history, state)
    entries.append(StateSet(KEPT + name, msgspec.to_builtins(kept)))
    return entries


def _values(before: Checkpoint, state: AgentState) -> list[Logged]:
    """Return the entries that make the values of a thread, which tools read as `ctx.state`, equal to the metadata of
    `state`: values that differ are set, and values that are not in the metadata are deleted. `before` is the state of
    the thread in Clew, with its present values."""
    known = {key: value for key, value in before.state.items() if not key.startswith("clew:") and value is not None}
    changed: list[Logged] = [StateSet(key, value) for key, value in state.metadata.items() if known.get(key) != value]
    return [*changed, *(StateSet(key, None) for key in known if key not in state.metadata)]


def _spent(before: Checkpoint, state: AgentState) -> list[Logged]:
    """Return a list with one entry, for the tokens that `state` counts beyond those in `before`, the state of the
    thread in Clew; an empty list if there are none. The entry's cost is what `state` counts beyond the cost in
    `before`, or None (not known) if that is not more than 0."""
    usage = Usage(
        max(0, state.prompt_tokens_used - before.usage.input_tokens),
        max(0, state.completion_tokens_used - before.usage.output_tokens),
        max(0, state.cache_read_tokens_used - before.usage.cache_read_tokens),
        max(0, state.cache_creation_tokens_used - before.usage.cache_write_tokens),
    )
    if usage == Usage():
        return []
    cost = state.cost_usd_used - (before.cost_usd or 0.0)
    return [Spend(usage, cost if cost > 0 else None)]


def newest(head: Head, state: Checkpoint) -> AgentState:
    """Return the present state of a thread in the form of Locus. `head` is the head of the thread, and `state` its
    state in Clew.

    If an agent has gone on since a state was saved, messages, values and tokens are those of the thread, and the fields
    that only Locus knows are as they were saved.
    """
    kept = next(reversed(kept_in(state).values()), None)
    found = dated(state_of(head.thread_id, state, state.messages), head)
    if kept is None:
        return found
    if kept.end == len(state.history):
        saved = kept.state(head.thread_id, state.history)
        set_there = {key: value for key, value in saved.metadata.items() if value is not None}
        return saved if set_there == found.metadata else msgspec.structs.replace(saved, metadata=found.metadata)
    other = {key: value for key, value in kept.other.items() if key not in _CHANGING}
    return AgentState.from_checkpoint({**found.to_checkpoint(), **other})


def dated(state: AgentState, head: Head) -> AgentState:
    """Return a copy of `state` with the times at which its thread was made and last changed."""
    return msgspec.structs.replace(state, started_at=head.created_at, updated_at=head.updated_at)
