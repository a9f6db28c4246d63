"""Fork a thread: create another thread that continues from one of its turns.

Both threads share their large values. The fork's usage and cost start at zero, so that nothing is counted twice.
"""

from __future__ import annotations

import logging

import msgspec

from clew.checkpointers import Checkpointer, Head
from clew.errors import Conflict, InvalidInput
from clew.log import Checkpoint, Rewound, Usage, fold
from clew.threads.appends import append_state
from clew.threads.heads import new_head
from clew.threads.sketch import sketch_of, state_up_to

__all__ = ["check_turn", "fork", "state_for"]

log = logging.getLogger("clew.threads")


async def fork(
    checkpointer: Checkpointer, thread_id: str, state: Checkpoint, new_id: str, at_turn: int | None = None
) -> Head:
    """Create the thread `new_id` in one append. It begins with the state that `thread_id` had at the end of turn
    `at_turn`.

    By default that is the last turn. `state` is the current state of the thread `thread_id`. Returns the new thread's
    head. Raises `Conflict` if the new id is taken, and `InvalidInput` if there is no such turn.
    """
    turn = state.turns if at_turn is None else at_turn
    check_turn(thread_id, state, turn)
    branch = _branch(thread_id, state, turn)
    try:
        head = await append_state(checkpointer, new_head(new_id), branch, source_id=thread_id)
    except Conflict as conflict:
        raise Conflict(new_id, f"the fork of {thread_id!r} needs an unused id, and this thread exists") from conflict
    log.info("thread %r: forked to %r at turn %d", thread_id, new_id, turn)
    return head


async def state_for(checkpointer: Checkpointer, thread_id: str, turn: int) -> Checkpoint:
    """Return the state from which `fork` can make a fork at this turn. It lacks the messages of later turns, so that
    forking a long thread at its beginning takes little memory.

    Raises `ThreadNotFound` if there is no such thread, and `InvalidInput` if there is no such turn.
    """
    sketch, head = await sketch_of(checkpointer, thread_id)
    check_turn(thread_id, sketch, turn)
    return await state_up_to(checkpointer, head, sketch, turn)


def check_turn(thread_id: str, state: Checkpoint, turn: int) -> None:
    """Raise `InvalidInput` unless the thread, whose state is given, has this turn. Turn 0 is before the first response."""
    if not 0 <= turn <= state.turns:
        raise InvalidInput(f"thread {thread_id!r} has turns 0 to {state.turns}; there is no turn {turn} to go back to")


def _branch(thread_id: str, state: Checkpoint, turn: int) -> Checkpoint:
    """Return the state with which a fork at this turn begins.

    A tool call that is not done at the end of that turn is in doubt in the fork: it is unknown whether it took effect,
    because the parent thread may be running it.
    """
    at = fold([Rewound(turn=turn)], state)
    reached = max((stop for ranges in (at.view, *at.marks) for _, stop in ranges), default=0)
    unsettled = {call.index: (call.key, call.attempt) for call in at.calls if call.status != "done"}
    return msgspec.structs.replace(
        at,
        parent=(thread_id, turn),
        status="interrupted",
        reason="",
        usage=Usage(),
        cost_usd=0.0,
        unaccounted=0,
        seconds=0.0,
        done_at=-1,
        in_flight=False,
        history=at.history[:reached],
        intents=at.intents | unsettled,
    )
