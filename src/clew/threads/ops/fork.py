"""Fork a thread: create another thread that continues from one of its turns.

Large values are shared by both threads. The fork's spend starts at zero, so that nothing is counted twice.
"""

from __future__ import annotations

import logging
import secrets
from datetime import UTC, datetime

import msgspec

from clew.checkpointers import Checkpointer, Head
from clew.errors import Conflict, InvalidInput
from clew.log import FIRST, Checkpoint, FoldedState, Rewound, Usage, encode_entries, encode_frame, fold
from clew.log.trees import named_trees
from clew.threads.heads import head_of
from clew.threads.trees import keep_trees

__all__ = ["check_turn", "fork"]

log = logging.getLogger("clew.threads")


async def fork(
    checkpointer: Checkpointer, thread_id: str, state: Checkpoint, new_id: str, at_turn: int | None = None
) -> Head:
    """Create thread `new_id` with the state at the end of a turn, in one append. Raises `Conflict` if that id is taken."""
    turn = state.turns if at_turn is None else at_turn
    check_turn(thread_id, state, turn)
    branch = _branch(thread_id, state, turn)
    keys = checkpointer.keys
    frame = encode_frame([encode_entries([FoldedState(branch)])], previous=FIRST, thread_id=new_id, keys=keys)
    now = datetime.now(UTC)
    base = Head(
        thread_id=new_id,
        frames=1,
        log_id=secrets.token_hex(16),
        status=branch.status,
        snapshot=0,
        digest=frame.digest.hex(),
        created_at=now,
        updated_at=now,
    )
    head = head_of(branch, base, encrypted=keys is not None)
    trees = named_trees([FoldedState(branch)])
    await keep_trees(checkpointer, trees, thread_id)
    if frame.blobs:
        await checkpointer.put_blobs(frame.blobs)
    try:
        await checkpointer.append(new_id, [frame.data], at=0, head=head, refs={*frame.blobs, *trees})
    except Conflict as conflict:
        raise Conflict(new_id, f"the fork of {thread_id!r} needs an unused id, and this thread exists") from conflict
    log.info("thread %r: forked to %r at turn %d", thread_id, new_id, turn)
    return head


def check_turn(thread_id: str, state: Checkpoint, turn: int) -> None:
    """Raise `InvalidInput` unless the thread has this turn."""
    if not 0 <= turn <= state.turns:
        raise InvalidInput(f"thread {thread_id!r} has turns 0 to {state.turns}; there is no turn {turn} to go back to")


def _branch(thread_id: str, state: Checkpoint, turn: int) -> Checkpoint:
    """Return the fork's state. A call that is not settled at that turn becomes in doubt: the parent may be running it."""
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
