"""Checks what is appended with a token that has the scope `append` but not `write`. Such a token may add to the history
of a thread, and cannot destroy what is there: the log only grows, and the head, the thread's summary, always fits the
log."""

from __future__ import annotations

from datetime import timedelta

from clew.checkpointers import Head
from clew.checkpointers.http.protocol import Append
from clew.log.codec import DIGEST, FIRST, PREVIOUS, is_sound
from clew.server.failures import Refused
from clew.threads.heads import PART, is_part

__all__ = ["check_addition"]

_FIXED = ("log_id", "created_at")
"""The fields of a head, the summary of a thread, that no append may change."""
_WITH_FRAMES = (
    *("digest", "snapshot", "parent", "agent", "title", "model", "tags"),
    *("turns", "input_tokens", "output_tokens", "cost_usd"),
)
"""The fields of a head, the summary of a thread, that may change only if frames (records of the log) are appended in
the same step. Without frames, only the lease, the status and the time of the last change may change, so that a lease
can be renewed."""
_SKEW = timedelta(hours=1)
"""How far an append may set back the time of the thread's last change, because the clocks of machines differ. An append
that sets it back further is refused, because `clew prune` deletes threads by their age."""


def check_addition(stored: Head | None, body: Append) -> None:
    """Raise `Refused` if an append could destroy or hide history. `stored` is the thread's head before the append; None
    if there is no such thread.

    The frames must continue the log without a gap, and the new head must describe the log that results. The head must
    not mark the thread as incomplete, because incomplete threads are hidden and may be deleted. It must not make the
    thread look older. If no frames are appended, the head may change only the lease, the status and the time. A thread
    that is still incomplete, because a copy is being written to it, may get its final head.

    An append at another place than the end of the log is not checked: the store refuses it, or finds that it was made
    before.
    """
    head = body.head
    if stored is not None and stored.frames != body.at:
        return
    if head.frames != body.at + len(body.frames):
        raise _refused("the head has another number of frames than the log would have")
    end = FIRST.hex() if stored is None else stored.digest
    for frame in body.frames:
        if not is_sound(frame) or bytes(frame[PREVIOUS]).hex() != end:
            raise _refused("a frame does not follow the one before it")
        end = bytes(frame[DIGEST]).hex()
    if head.digest != end:
        raise _refused("the head has another digest than the last frame")
    if not -1 <= head.snapshot < head.frames:
        raise _refused("the head names a snapshot that is not in the log")
    if stored is None or (is_part(stored) and stored.log_id == head.log_id):
        return
    fixed = _FIXED if body.frames else (*_FIXED, *_WITH_FRAMES)
    if changed := [name for name in fixed if getattr(head, name) != getattr(stored, name)]:
        raise _refused(f"the head changes {', '.join(changed)}")
    if head.snapshot != stored.snapshot and head.snapshot not in range(body.at, head.frames):
        raise _refused("the head names an old frame as its snapshot")
    if PART in head.tags:
        raise _refused("the head marks the thread as incomplete")
    if head.updated_at < stored.updated_at - _SKEW:
        raise _refused("the head makes the thread older than it is")


def _refused(reason: str) -> Refused:
    return Refused("forbidden", f"this token may only add to threads, and {reason}; that needs the scope 'write'")
