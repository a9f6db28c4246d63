"""Trajectories: what a session has done so far, prompt by prompt. They are read from the store, so every process reads
the same trajectory."""

from __future__ import annotations

from typing import Any

import msgspec

from clew.agent.exchanges import ExchangeSpan, exchanges_in
from clew.agent.run import RunResult
from clew.checkpointers import Checkpointer, HeadQuery
from clew.log import Checkpoint, Usage
from clew.messages import Assistant, Block, Message, Tool, plain_text
from clew.threads import Thread
from clew.threads.heads import is_child

__all__ = ["Exchange", "Trajectory", "answer_on_record", "done_since", "read_trajectory", "said_in"]


class Exchange(RunResult, frozen=True, kw_only=True):
    """One prompt, and everything that was done for it until it was answered or stopped. Exchanges are read from the
    log, as parts of a `Trajectory`.

    `usage`, `cost` and `duration` cover all runs that worked on this prompt, including those that crashed. A value that
    is not known is None. `status` says how the exchange ended: `running` while a process works on it, and `interrupted`
    if its process stopped without recording an end.
    """


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """All exchanges of a session from its beginning. Exchanges that were taken back by a rewind are not included."""

    thread_id: str
    exchanges: tuple[Exchange, ...] = ()
    """Every prompt with what was done for it, in the order in which the prompts were asked."""
    usage: Usage = Usage()
    """Tokens that the whole thread has used, including turns that were taken back by a rewind."""
    cost: float | None = 0.0
    """What the whole thread cost in dollars, including turns that were taken back by a rewind; None if a price is not
    known."""
    duration: float = 0.0
    """How many seconds runs have worked on the thread."""
    metadata: dict[int, dict[str, Any]] = {}
    """What tools noted about each turn (`ctx.metadata`), by the number of the turn from 1."""
    sub_agents: tuple[Trajectory, ...] = ()
    """The trajectories of the sub-agents that this thread called, in the order in which their threads were created."""

    @property
    def num_exchanges(self) -> int:
        return len(self.exchanges)


def said_in(messages: tuple[Message, ...]) -> tuple[Block, ...]:
    """Return the blocks (text, thinking, calls, results) of all model responses and tool results among these messages."""
    return tuple(block for message in messages if type(message) in (Assistant, Tool) for block in message.content)


def done_since(before: Checkpoint, state: Checkpoint) -> tuple[Block, ...]:
    """Return the blocks (text, thinking, calls, results) that were added to a thread between the states `before` and
    `state`.

    Calls that were recorded before but had no result then are included too, at the beginning. Results that were
    recorded before are not included.
    """
    settled = [call.call for call in before.calls if call.result is None]
    said = list(said_in(state.history[len(before.history) :]))
    if state.open_message >= 0:
        said += [call.result for call in state.calls if call.result is not None]
    for known in before.results.values():
        if known in said:
            said.remove(known)
    return (*settled, *said)


async def read_trajectory(store: Checkpointer, thread_id: str) -> tuple[Trajectory, Checkpoint]:
    """Read the trajectory of a thread, which lists its exchanges and what they cost. Its field `sub_agents` has those
    of the agents that the thread called as tools. Return the trajectory and the state of the thread."""
    state = await Thread.load(store, thread_id)
    children = [
        _trajectory(head.thread_id, await Thread.load(store, head.thread_id))
        async for head in store.heads(HeadQuery(parent=thread_id, order="created"))
        if is_child(head)
    ]
    found = _trajectory(thread_id, state)
    return msgspec.structs.replace(found, sub_agents=tuple(reversed(children))), state


def _trajectory(thread_id: str, state: Checkpoint) -> Trajectory:
    """Make a `Trajectory`, which lists a thread's exchanges and what they cost, from the state of the thread. It does
    not matter which agent worked on the thread. Sub-agents are not included."""
    turns, found = 0, []
    for exchange in exchanges_in(state):
        turns += sum(type(message) is Assistant for message in exchange.messages)
        found.append(exchange_result(thread_id, state, exchange, turns))
    return Trajectory(
        thread_id=thread_id,
        exchanges=tuple(found),
        usage=state.usage,
        cost=state.cost_usd,
        duration=round(state.seconds, 6),
        metadata=state.metadata,
    )


def answer_on_record(thread_id: str, state: Checkpoint, span: ExchangeSpan) -> RunResult:
    """Return an exchange from the record as the result of a new run, for a prompt that was asked before. Usage, cost
    and duration are zero, because the new run asked no model."""
    told = msgspec.structs.asdict(exchange_result(thread_id, state, span, state.turns))
    return RunResult(
        **{**told, "usage": Usage(), "cost": 0.0, "duration": 0.0, "resumed_from": state.turns},
    )


def exchange_result(thread_id: str, state: Checkpoint, exchange: ExchangeSpan, turns: int) -> Exchange:
    """Convert an exchange that was read from the log to the public type `Exchange`. `state` is the thread's state, and
    `turns` how many turns the whole thread had when the exchange ended."""
    status: Any = exchange.status
    last = exchange.up_to_answer[-1] if exchange.up_to_answer else None
    blocks = said_in(exchange.messages)
    if exchange.is_last and exchange.answered_with is None:
        blocks += tuple(call.result for call in state.calls if call.result is not None) + state.partial
    return Exchange(
        prompt=exchange.prompt,
        prompt_id=exchange.prompt_id,
        output=plain_text(last) if type(last) is Assistant and status == "done" else None,
        thread_id=thread_id,
        session_id=thread_id,
        status=status,
        reason=exchange.reason,
        usage=exchange.spent.usage,
        cost=exchange.spent.cost,
        turns=turns,
        duration=round(exchange.spent.seconds, 6),
        blocks=blocks,
        provider=exchange.provider,
        model=exchange.model,
    )
