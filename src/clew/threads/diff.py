"""Find the entries that turn one state of a thread into another, and refuse changes that no entries can bring about."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.log import (
    Checkpoint,
    Described,
    Fact,
    Fold,
    Logged,
    MessageAdded,
    ModelCallStarted,
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
    Usage,
    WorkspaceChanging,
    WorkspaceSnapshot,
)
from clew.log.checkpoint import Kind, Ranges, provider_key
from clew.messages import Assistant, Message

__all__ = ["difference"]

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def difference(thread_id: str, old: Checkpoint, new: Checkpoint) -> list[Logged]:
    """Return the entries that lead from the state `old` to the state `new`.

    If `old` has messages that `new` lacks, the first entries take the thread back (rewind it) to the last message that
    both have. The others add everything that is new. Spend and history never shrink: if `old` has more of them than
    `new`, the thread keeps them, and that is not an error. Raises `InvalidInput` if the entries cannot bring about
    every other part of `new`. The error names every field that would differ, so that nothing is lost silently.
    """
    if missing := old.state.keys() - new.state.keys():
        raise InvalidInput(
            f"saving cannot remove keys of the state; set these keys to None: {', '.join(sorted(missing))}"
        )
    _check_places(thread_id, new)
    draft = _Draft(old)
    draft.add(*_start(old, new))
    _conversation(draft, old, new)
    _calls(draft, new)
    _rest(draft, new)
    if lost := list(_lost(draft.state(), new)):
        raise InvalidInput(
            f"thread {thread_id!r}: saving would not keep {'; nor '.join(lost)}. Nothing was saved. Make the state with "
            "fold(entries, thread.checkpoint), or append the entries themselves."
        )
    return draft.entries


def _check_places(thread_id: str, new: Checkpoint) -> None:
    """Raise `InvalidInput` if the state `new` names messages by indices that its history does not have: as messages
    that the model sees or has seen, or as the response of the open turn.

    A state that was put together by hand, and not by `fold`, may do so.
    """
    ranges = [*new.view, *(part for mark in new.marks for part in mark)]
    if not new.marks or new.open_message >= len(new.history) or any(stop > len(new.history) for _, stop in ranges):
        raise InvalidInput(
            f"thread {thread_id!r}: view, marks or open_message of the checkpoint name messages that its history does not "
            "hold. Nothing was saved. Make the state with fold(entries, thread.checkpoint)."
        )


class _Draft:
    """Collects entries that turn the state `start` of a thread into another state. Also computes the state to which the
    entries so far lead."""

    def __init__(self, start: Checkpoint) -> None:
        self.entries: list[Logged] = []
        self._fold = Fold(start)

    def add(self, *entries: Logged) -> None:
        self.entries += entries
        self._fold.push(entries)

    def state(self) -> Checkpoint:
        return self._fold.checkpoint()

    @property
    def turns(self) -> int:
        return self._fold.turns


def _start(old: Checkpoint, new: Checkpoint) -> list[Logged]:
    """Return a list of one `ThreadStarted` entry with the agent, model, prompt, tools, limits and parent of `new`, if
    any of them differs in `old`. Otherwise return an empty list."""

    def start(state: Checkpoint) -> ThreadStarted:
        return ThreadStarted(state.agent, state.model, state.system_prompt, state.tools, state.limits, state.parent)

    return [] if _same(start(new), start(old)) else [start(new)]


def _conversation(draft: _Draft, old: Checkpoint, new: Checkpoint) -> None:
    """Add entries for the messages and facts that are new in `new` to `draft`, which collects the entries that lead
    from the state `old` to the state `new`. A fact is a value that holds from a turn on.

    If `old` has messages that `new` lacks, an entry that takes the thread back (a rewind) comes first. A turn's facts
    are added before the next turn begins, so that a later rewind undoes them together with their turn.
    """
    before, after = old.messages, new.messages
    same = _common(old, new)
    if same < len(before):
        draft.add(Rewound(messages=same))
    known = {_id(fact): fact.value for fact in draft.state().facts}
    coming = [fact for fact in new.facts if _id(fact) not in known or not _same(known[_id(fact)], fact.value)]
    for message in after[same:]:
        if isinstance(message, Assistant):
            coming = _facts(draft, coming)
        draft.add(MessageAdded(message))
    _facts(draft, coming)


def _common(old: Checkpoint, new: Checkpoint) -> int:
    """Return how many messages at the start of the two conversations are the same.

    The history of a state holds every message ever recorded. If the history of `new` begins with all of the history of
    `old`, messages are compared by their indices in the history, because the same words said again are another message.
    Otherwise they are compared by content.
    """
    before: Sequence[Any] = old.messages
    after: Sequence[Any] = new.messages
    if new.history[: len(old.history)] == old.history:
        before, after = _places(old.view), _places(new.view)
    same = 0
    for mine, theirs in zip(before, after, strict=False):
        if not _same(mine, theirs):
            break
        same += 1
    return same


def _places(view: Ranges) -> tuple[int, ...]:
    return tuple(place for start, stop in view for place in range(start, stop))


def _id(fact: Fact) -> tuple[int, Kind, str]:
    return fact.turn, fact.kind, fact.key


def _facts(draft: _Draft, coming: list[Fact]) -> list[Fact]:
    """Add entries to the draft, the list of entries to be saved, for those facts in `coming` that belong to the last
    turn that the draft has reached. Return the facts of other turns.

    A fact is a value that holds from a turn on. `coming` are the facts that the draft does not have yet.
    """
    turn = draft.turns
    draft.add(*(_setting(fact) for fact in coming if fact.turn == turn))
    return [fact for fact in coming if fact.turn != turn]


def _setting(fact: Fact) -> Logged:
    """Return the entry that records this fact in a log.

    A fact is a value that holds from a turn on, such as a file snapshot.
    """
    if fact.kind == "workspace":
        return WorkspaceSnapshot(*fact.value)
    if fact.kind == "changing":
        return WorkspaceChanging(*(fact.value or ()))
    if fact.kind == "provider":
        return provider_key(fact)
    return StateSet(fact.key, fact.value, scope="thread" if fact.kind == "state" else "turn")


def _calls(draft: _Draft, new: Checkpoint) -> None:
    """Add to the draft, the list of entries that are to lead to the state `new`, the entries about tool calls that it
    still lacks: intents (records that a call or a step is about to run), outcomes of steps, and results of calls.

    A step is a section of a tool's code whose outcome is recorded by itself. Only the last turn is looked at, and only
    while its calls are not all done.
    """
    known = {call.index: call for call in draft.state().calls}
    for call in new.calls:
        mine = known.get(call.index)
        if mine is None or mine.status == "done":
            continue
        place = mine.message, mine.index
        if call.index in new.intents and (call.key, call.attempt) != (mine.key, mine.attempt):
            draft.add(ToolIntent(*place, call.key, call.attempt))
        for key, value in call.steps.items():
            if key not in mine.steps or not _same(mine.steps[key], value):
                draft.add(StepOutcome(*place, key, value))
        draft.add(*(StepIntent(*place, key) for key in call.open_steps if key not in mine.open_steps))
        if call.result is not None:
            draft.add(ToolOutcome(*place, call.result))


def _rest(draft: _Draft, new: Checkpoint) -> None:
    old = draft.state()
    if new.partial[: len(old.partial)] == old.partial and new.partial != old.partial:
        draft.add(Streamed(new.partial[len(old.partial) :]))
    if new.in_flight and not old.in_flight:
        draft.add(ModelCallStarted(new.model))
    draft.add(*_spend(old, new))
    if (new.title, new.tags) != (old.title, old.tags):
        draft.add(Described(new.title, new.tags))
    if (new.status, new.reason) != (old.status, old.reason):
        draft.add(StatusChanged(new.status, new.reason))


def _spend(old: Checkpoint, new: Checkpoint) -> list[Logged]:
    usage = Usage(*(max(0, getattr(new.usage, field) - getattr(old.usage, field)) for field in Usage.__struct_fields__))
    cost = None if new.cost_usd is None or old.cost_usd is None else max(0.0, new.cost_usd - old.cost_usd)
    seconds = max(0.0, new.seconds - old.seconds)
    unknown = new.cost_usd is None and old.cost_usd is not None
    return [Spend(usage, cost, seconds)] if cost or seconds or unknown or usage != Usage() else []


def _lost(kept: Checkpoint, new: Checkpoint) -> Iterator[str]:
    """Yield the name of each field of `new`, a state to be saved, that saving would not keep, because `kept`, the state
    after saving, has another value in that field. Some names come with a reason. That `kept` has more messages in its
    history, or larger amounts spent, is no loss."""
    if not new.messages and new.history and not _is_part(new.history, kept.history):
        yield "history, as view= says that the model sees nothing of it (view=((0, len(history)),) is all of it)"
    elif not _same(kept.messages, new.messages):
        yield "messages"
    elif not _is_part(new.history, kept.history):
        yield "history, of which only the messages that the model sees are saved"
    elif _seen(kept, kept.marks) != _seen(new, new.marks):
        yield f"marks, as these messages are {kept.turns} turns and the marks are for {new.turns}"
    for field in ("agent", "model", "system_prompt", "tools", "limits", "parent", "title", "tags", "status", "reason"):
        if not _same(getattr(kept, field), getattr(new, field)):
            yield field
    if others := _other_facts(kept.facts, new.facts):
        yield "facts: " + ", ".join(sorted(others))
    if not _same([_unplaced(call) for call in kept.calls], [_unplaced(call) for call in new.calls]):
        yield "how far the open calls came"
    for field in ("intents", "results", "steps", "open_steps"):
        if new.open_message < 0 and getattr(new, field):
            yield f"{field}, as no turn is open (open_message)"
    if kept.partial != new.partial:
        yield "partial"
    if kept.in_flight != new.in_flight:
        yield "in_flight"
    if new.done_at not in (-1, kept.done_at) and not (new.done_at == len(new.history) and new.status == "done"):
        yield "done_at"
    yield from _lost_spend(kept, new)


def _lost_spend(kept: Checkpoint, new: Checkpoint) -> Iterator[str]:
    if any(getattr(kept.usage, field) < getattr(new.usage, field) for field in Usage.__struct_fields__):
        yield "usage"
    if kept.unaccounted < new.unaccounted:
        yield "unaccounted"
    if kept.cost_usd is not None and (new.cost_usd is None or _less(kept.cost_usd, new.cost_usd)):
        yield "cost_usd"
    if _less(kept.seconds, new.seconds):
        yield "seconds"


def _less(kept: float, new: float) -> bool:
    """Return whether `kept` is smaller than `new` by more than a rounding error."""
    return kept < new and not math.isclose(kept, new, rel_tol=1e-9, abs_tol=1e-12)


def _is_part(part: Sequence[Message], whole: Sequence[Message]) -> bool:
    """Return whether all messages of `part` are in `whole`, in the same order. Others may be between them."""
    if whole[: len(part)] == part:
        return True
    rest = iter(whole)
    return all(any(message == other for other in rest) for message in part)


def _seen(state: Checkpoint, marks: tuple[Ranges, ...]) -> list[tuple[Message, ...]]:
    """Return, for each turn, the messages that the model saw at the end of the turn.

    `marks` gives these messages for each turn as ranges of indices in the state's history.
    """
    return [tuple(message for start, stop in mark for message in state.history[start:stop]) for mark in marks]


def _other_facts(kept: Sequence[Fact], new: Sequence[Fact]) -> set[str]:
    mine, theirs = ({_id(fact): _encode(fact.value) for fact in facts} for facts in (kept, new))
    different = {fact for fact in mine.keys() | theirs.keys() if mine.get(fact) != theirs.get(fact)}
    return {f"{kind} {key!r} of turn {turn}".replace(" ''", "") for turn, kind, key in different}


def _same(mine: Any, theirs: Any) -> bool:
    """Return whether two values are stored as the same bytes. 1, 1.0 and True are equal in Python and differ here."""
    return mine is theirs or _encode(mine) == _encode(theirs)


def _unplaced(call: Any) -> Any:
    return call.index, call.call, call.status, call.key, call.attempt, call.result, call.steps, call.open_steps
