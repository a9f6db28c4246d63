"""What a thread was earlier: the fold of a prefix of its log, also of a line of work that was rewound since."""

from __future__ import annotations

import msgspec

from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput, ThreadNotFound
from clew.log import DIGEST, Checkpoint
from clew.threads.hiding import is_part
from clew.threads.streaming import state_at

__all__ = ["state_after"]


async def state_after(checkpointer: Checkpointer, thread_id: str, frames: int) -> Checkpoint:
    """The state a thread had after this many of its frames. Takes no lease and changes nothing.

    Exact, and not only for ends of turns: with this a rewind is undone, by a fork of what was there before it. A log that
    was written anew since (`purge_rewound`, `repair`) counts its frames anew.
    """
    head = await checkpointer.head(thread_id)
    if head is None or is_part(head):
        raise ThreadNotFound(thread_id)
    if not 1 <= frames <= head.frames:
        raise InvalidInput(
            f"thread {thread_id!r} has frames 1 to {head.frames}; there is no frame {frames} to go back to"
        )
    last = await checkpointer.read(thread_id, start=frames - 1, stop=frames)
    digest = last[0][DIGEST].hex() if last else ""
    folded = head.snapshot if head.snapshot < frames else -1
    return await state_at(checkpointer, msgspec.structs.replace(head, frames=frames, snapshot=folded, digest=digest))
