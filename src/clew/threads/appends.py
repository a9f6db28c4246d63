"""Functions that append frames to a log which this process does not hold open, for forks, copies, repairs, purges and
rekeying.

The log of an open thread is written by `LogWriter`. These functions make single appends without one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from clew._runtime.clock import now
from clew.checkpointers import Checkpointer, Head
from clew.errors import WrongKey
from clew.log import FIRST, Checkpoint, EncodedFrame, Fold, FoldedState, encode_entries, encode_frame
from clew.log.keys import KEY_ID_SIZE
from clew.log.trees import named_trees
from clew.threads.heads import head_of
from clew.threads.trees import keep_trees

__all__ = ["append_frames", "append_state"]


async def append_frames(
    checkpointer: Checkpointer,
    base: Head,
    frames: Sequence[EncodedFrame],
    *,
    state: Fold | Checkpoint | None = None,
    refs: Collection[str] = (),
    **changes: Any,
) -> Head:
    """Store the frames' blobs, append the frames at the end of the log that `base` describes, and return the new head.

    The new head is `base` with its new length, digest and time. `state` is the thread's state after these frames; if it
    is given, the head's fields that follow from it, such as status and cost, are set too. `changes` gives further
    fields of the head with their values, which override all others. `refs` are the digests of further blobs that the
    thread needs, in addition to those of the frames.

    Raises `Conflict` if the log does not end where `base` says. Raises `WrongKey` if `base` has a seal (a code that
    only somebody with the store's key can make) and the checkpointer has no key.
    """
    if base.seal and checkpointer.keys is None:
        raise WrongKey(f"the head of thread {base.thread_id!r}", base.seal[: 2 * KEY_ID_SIZE])
    position = {
        "frames": base.frames + len(frames),
        "digest": frames[-1].digest.hex() if frames else base.digest,
        "updated_at": now(),
    }
    head = base if state is None else head_of(state, base, encrypted=checkpointer.keys is not None)
    head = msgspec.structs.replace(head, **(position | changes))
    blobs = {digest: packed for frame in frames for digest, packed in frame.blobs.items()}
    if blobs:
        await checkpointer.put_blobs(blobs)
    data = [frame.data for frame in frames]
    await checkpointer.append(head.thread_id, data, at=base.frames, head=head, refs={*blobs, *refs})
    return head


async def append_state(
    checkpointer: Checkpointer,
    base: Head,
    state: Checkpoint,
    *,
    source_id: str,
    refs: Collection[str] = (),
    **changes: Any,
) -> Head:
    """Write a new log whose only entry is `state`, and return the new thread's head.

    `base` gives the new thread's id, its time of creation, and the random id that tells its log from other logs under
    the same thread id. `refs` are the digests of further blobs that the new thread needs, in addition to those of the
    state. `changes` gives fields of the new head with their values. Raises `Conflict` if the new thread exists. Raises
    `MissingBlob` if the state names a file snapshot of which the store lacks blobs; the error names `source_id`, the
    thread that the state comes from.
    """
    folded = FoldedState(state)
    frame = encode_frame([encode_entries([folded])], previous=FIRST, thread_id=base.thread_id, keys=checkpointer.keys)
    trees = named_trees([folded])
    await keep_trees(checkpointer, trees, source_id)
    start = msgspec.structs.replace(base, frames=0, snapshot=0)
    return await append_frames(checkpointer, start, [frame], state=state, refs={*trees, *refs}, **changes)
