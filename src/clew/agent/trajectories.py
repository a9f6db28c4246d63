"""What a session has done so far, prompt by prompt: read from the record, so that any process sees the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from clew.agent.notes import is_prompt
from clew.agent.runs import RunResult
from clew.checkpointers import Checkpointer, HeadQuery
from clew.log import Checkpoint, StateSet, Usage
from clew.log.checkpoint import TURN_MARK
from clew.messages import Assistant, Block, Message, Tool, plain_text
from clew.threads import Thread
from clew.threads.lineage import is_child

__all__ = ["Trajectory", "Turn", "begun", "done_since", "ended", "read_trajectory", "said_in", "stopped_at"]


class Turn(RunResult, frozen=True, kw_only=True):
    """One prompt, and all that was done on it. `usage` and `cost` are of this prompt alone, where that is on record."""


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A session from its beginning, rewinds applied."""

    thread_id: str
    turns: tuple[Turn, ...] = ()
    usage: Usage = Usage()
    """Of the whole thread, what was rewound included: it was spent."""
    cost: float | None = 0.0
    """Dollars, likewise; None if a price is not known."""
    duration: float = 0.0
    """Seconds of work."""
    sub_agents: tuple[Trajectory, ...] = ()
    """What the sub-agents did that its turns called, in the order in which they ended."""

    @property
    def num_turns(self) -> int:
        return len(self.turns)


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a prompt beside the messages."""

    provider: str = ""
    model: str = ""
    end: int = -1
    """How long the history was when it was answered; -1 if it never was."""
    status: str = "interrupted"
    reason: str = ""
    usage: Usage = Usage()
    cost_usd: float | None = None
    seconds: float = 0.0


def begun(place: int, provider: str, model: str) -> StateSet:
    """On record with a prompt, which stands at this place of the history."""
    return _kept(place, _Record(provider, model))


def ended(place: int, end: int, turn: Turn) -> StateSet:
    """On record when it is answered, or when it turns out that it never will be."""
    record = _Record(turn.provider, turn.model, end, turn.status, turn.reason, turn.usage, turn.cost, turn.duration)
    return _kept(place, record)


def _kept(place: int, record: _Record) -> StateSet:
    return StateSet(f"{TURN_MARK}{place}", msgspec.to_builtins(record), "turn")


def stopped_at(state: Checkpoint) -> tuple[int, Turn, bool] | None:
    """The last prompt, with its place, if whoever worked on it was stopped; and whether it could still say so."""
    records = {place: record for place, record in _records(state).items() if _is_seen(state, place)}
    if not records:
        return None
    place, record = max(records.items())
    if record.status != "interrupted":
        return None
    return place, _turn("", plain_text(state.history[place]), record), record.end >= 0


def _is_seen(state: Checkpoint, place: int) -> bool:
    return any(start <= place < stop for start, stop in state.view)


def said_in(messages: tuple[Message, ...]) -> tuple[Block, ...]:
    """The blocks of all responses and results among these."""
    return tuple(block for message in messages if type(message) in (Assistant, Tool) for block in message.content)


def done_since(before: Checkpoint, state: Checkpoint) -> tuple[Block, ...]:
    """The blocks that came to a thread between these two states. A call that was open before and is settled since is among
    them, in front of its result; one whose result was on record before is not, and neither is that result."""
    settled = [call.call for call in before.calls if call.result is None]
    said = list(said_in(state.history[len(before.history) :]))
    if state.open_message >= 0:
        said += [call.result for call in state.calls if call.result is not None]
    for known in before.results.values():
        if known in said:
            said.remove(known)
    return (*settled, *said)


async def read_trajectory(store: Checkpointer, thread_id: str) -> tuple[Trajectory, Checkpoint]:
    """What was done on a thread, with what its sub-agents did; and the state that it was read from."""
    state = await Thread.load(store, thread_id)
    children = [
        _trajectory(head.thread_id, await Thread.load(store, head.thread_id))
        async for head in store.heads(HeadQuery(parent=thread_id, order="created"))
        if is_child(head)
    ]
    found = _trajectory(thread_id, state)
    return msgspec.structs.replace(found, sub_agents=tuple(reversed(children))), state


def _trajectory(thread_id: str, state: Checkpoint) -> Trajectory:
    """Read it from a thread's state. Also for threads of the built-in agent, whose prompts have no record of their own."""
    turns = tuple(_turns(thread_id, state))
    return Trajectory(
        thread_id=thread_id, turns=turns, usage=state.usage, cost=state.cost_usd, duration=round(state.seconds, 6)
    )


def _turns(thread_id: str, state: Checkpoint) -> Iterator[Turn]:
    records = _records(state)
    who, turns = str(state.limits.get("provider", "clew")), 0
    places = [place for start, stop in state.view for place in range(start, stop)]
    prompts = [number for number, place in enumerate(places) if is_prompt(state.history[place])]
    for number, following in zip(prompts, [*prompts, len(places)][1:], strict=True):
        messages = tuple(state.history[place] for place in places[number + 1 : following])
        record = records.get(places[number], _Record(who, end=len(state.history) if messages else -1, status="done"))
        is_open = record.end < 0 and following == len(places)
        blocks = said_in(messages) + (state.partial if is_open else ())
        turns += sum(type(message) is Assistant for message in messages)
        yield _turn(thread_id, plain_text(state.history[places[number]]), record, messages, blocks, turns)


def _turn(
    thread_id: str,
    prompt: str,
    record: _Record,
    messages: tuple[Message, ...] = (),
    blocks: tuple[Block, ...] = (),
    turns: int = 0,
) -> Turn:
    last = messages[-1] if messages else None
    status: Any = record.status
    return Turn(
        prompt=prompt,
        output=plain_text(last) if type(last) is Assistant and status == "done" else None,
        thread_id=thread_id,
        session_id=thread_id,
        status=status,
        reason=record.reason,
        usage=record.usage,
        cost=record.cost_usd,
        turns=turns,
        duration=record.seconds,
        blocks=blocks,
        provider=record.provider,
        model=record.model,
    )


def _records(state: Checkpoint) -> dict[int, _Record]:
    return {
        int(fact.key.removeprefix(TURN_MARK)): msgspec.convert(fact.value, _Record)
        for fact in state.facts
        if fact.kind == "turn" and fact.key.startswith(TURN_MARK)
    }
