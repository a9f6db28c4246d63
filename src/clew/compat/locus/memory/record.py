"""What a thread has on record of a state that was saved: the entries that bring it about, and what only Locus knows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from clew._runtime.clock import now
from clew.compat.locus.conversion import (
    added_messages,
    conversation_of,
    is_answered,
    shared_with,
    split_prompt,
    state_of,
)
from clew.compat.locus.state import AgentState
from clew.errors import InvalidInput
from clew.log import Checkpoint, Logged, Rewound, Spend, StateSet, StatusChanged, ThreadStarted, Usage, fold
from clew.log.checkpoint import Ranges

__all__ = ["KEPT", "Kept", "check_state", "check_values", "entries_for", "kept_in", "restored"]

KEPT = "clew:locus:"
"""Prefix of the names of the thread's values that hold a `Kept`. After it comes the checkpoint id."""

_IN_THE_LOG = frozenset({"messages", "metadata"})
"""The fields of a state that the log of the thread always says."""
_COUNTED = frozenset(
    {
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
"""The fields that grow with every turn. Once an agent has gone on with a thread, the log knows them better than the
state that was saved before."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A state that was saved: where in the thread's history its messages are, and the fields that are not in the log."""

    at: datetime
    since: int
    """The number of the turn with which the thread and this state parted. Later turns were added with the state."""
    turn: int
    """How many turns the state has."""
    end: int
    """Number of messages in the thread's history when the state was saved."""
    view: Ranges
    """The messages of the state, as ranges (start, stop) of indices in the thread's history."""
    metadata: dict[str, Any] = {}
    """The metadata that was given with the state, and what was given with earlier ones and not replaced since."""
    other: dict[str, Any] = {}
    """The fields of the state for which the log has another value, or none."""


def check_state(state: AgentState) -> None:
    """Raise `InvalidInput` if a part of this state cannot be recorded."""
    check_values(state.metadata)
    try:
        state.to_checkpoint()
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidInput(f"this state cannot be stored as JSON: {error}") from None


def check_values(values: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if a thread cannot have these values: their names, or what they are."""
    for key, value in values.items():
        if not isinstance(key, str) or key.startswith("clew:"):
            raise InvalidInput(f"metadata: {key!r} is no name for a value: names that begin with clew: are Clew's own")
        try:
            msgspec.json.encode(value)
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidInput(f"metadata: {key} is not made of texts, numbers, lists and dicts: {error}") from None


def kept_in(state: Checkpoint) -> dict[str, Kept]:
    """Return the states that were saved in a thread, by their ids, in the order in which they were saved."""
    found: dict[str, Any] = {}
    for fact in state.facts:
        if fact.kind == "state" and fact.key.startswith(KEPT):
            found.pop(fact.key, None)
            found[fact.key] = fact.value
    return {
        key.removeprefix(KEPT): msgspec.convert(value, Kept, strict=False)
        for key, value in found.items()
        if value is not None
    }


def entries_for(
    thread_id: str, before: Checkpoint, state: AgentState, name: str, metadata: dict[str, Any]
) -> list[Logged]:
    """Return the entries that make `state` the state of a thread, which is in the state `before`, and that record it
    under the id `name`."""
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
    if shared < len(before.messages):
        entries.append(Rewound(messages=shared))
    since = fold(entries, before).turns
    if shared < len(before.messages):  # a rewind forgets the values of later turns, and ids of states stay
        entries += [StateSet(KEPT + other, msgspec.to_builtins(kept)) for other, kept in saved.items()]
    added = conversation_of(messages[place:], state.tool_executions)
    entries += added_messages(added, len(before.history))
    entries += _values(before, state)
    entries += _spent(before, state)
    entries.append(StatusChanged("done" if is_answered([*before.messages[:shared], *added]) else "interrupted"))
    after = fold(entries, before)
    known = state_of(thread_id, after, after.messages).to_checkpoint()
    kept = Kept(
        at=now(),
        since=since,
        turn=after.turns,
        end=len(after.history),
        view=after.view,
        metadata={**(next(reversed(saved.values())).metadata if saved else {}), **metadata},
        other={
            key: value for key, value in state.to_checkpoint().items() if key not in _IN_THE_LOG and value != known[key]
        },
    )
    entries.append(StateSet(KEPT + name, msgspec.to_builtins(kept)))
    return entries


def _values(before: Checkpoint, state: AgentState) -> list[Logged]:
    """Return the entries that make the metadata of the state the values of the thread."""
    known = {key: value for key, value in before.state.items() if not key.startswith("clew:") and value is not None}
    changed: list[Logged] = [StateSet(key, value) for key, value in state.metadata.items() if known.get(key) != value]
    return [*changed, *(StateSet(key, None) for key in known if key not in state.metadata)]


def _spent(before: Checkpoint, state: AgentState) -> list[Logged]:
    """Return the entry that adds the tokens that the state has used and the thread does not know of. What they cost is
    not known, unless the state says it."""
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


def restored(found: AgentState, kept: Kept, *, is_exact: bool) -> AgentState:
    """Return a state with the fields that are not in the log, as they were saved. `found` is what the log says.

    With `is_exact` it is the very state that was saved. Otherwise an agent has gone on since, and what grows with every
    turn is as the log says.
    """
    other = {key: value for key, value in kept.other.items() if is_exact or key not in _COUNTED}
    known = {key: value for key, value in found.to_checkpoint().items() if key not in other}
    return AgentState.from_checkpoint({**known, **other})
