"""Checks what is appended with a token that has the scope `append` but not `write`. Such a token may add to the history
of a thread, and cannot destroy what is there: the log only grows, and the head, the thread's summary, always fits the
log."""

from __future__ import annotations

from datetime import timedelta

from clew._runtime.clock import now
from clew.checkpointers import Head
from clew.checkpointers.http.protocol import Append
from clew.errors import Conflict
from clew.log.codec import DIGEST, FIRST, PREVIOUS, is_sound
from clew.server.failures import Refused
from clew.threads.heads import INBOX, PART, REPAIR_OF, inbox_id, is_part, is_reserved

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
_IN_PROGRESS = frozenset({PART, REPAIR_OF})
"""The reserved tags that an append may set: those of an incomplete thread that a copy or a repair is writing."""
_SKEW = timedelta(hours=1)
"""How far the time of an append may be from the service's clock, because the clocks of machines differ."""


def check_addition(stored: Head | None, body: Append) -> None:
    """Raise `Refused` if an append could destroy or hide history. `body` is the append; `stored` is the thread's head
    before the append, or None if there is no such thread. The caller makes sure that nobody else appends between the
    reading of `stored` and the append.

    The frames must continue the log without a gap, and the new head must describe the log that results. The head must
    not mark the thread as incomplete, because incomplete threads are hidden and may be deleted. The head must have no
    id and no tag that is reserved for Clew, except those of an inbox, to which prompts are posted. It must not make the
    thread look older or newer than it is, because `clew prune` deletes threads by their age. If no frames are appended,
    the head may change only the lease, the status and the time. A thread that is still incomplete, because a copy is
    being written to it, may get its final head.

    Raises `Conflict` if the append begins after the end of the log. If it begins before the end, it is not checked here
    whether it fits the stored log: the store refuses such an append, unless it repeats one that was made before.
    """
    head, frames = body.head, 0 if stored is None else stored.frames
    if body.at > frames:
        raise Conflict(head.thread_id, f"its log ends at frame {frames}, not {body.at}")
    end = FIRST.hex() if stored is None else stored.digest
    _check_log(head, body, end if body.at == frames else None)
    _check_names(stored, head)
    latest = now() + _SKEW
    if head.updated_at > (latest if stored is None else max(latest, stored.updated_at)):
        raise _refused("the head is from the future, by the service's clock")
    if body.at < frames:
        return
    if stored is None or (is_part(stored) and stored.log_id == head.log_id):
        if head.created_at > latest:
            raise _refused("the head says that the thread was created in the future, by the service's clock")
        return
    fixed = _FIXED if body.frames else (*_FIXED, *_WITH_FRAMES)
    if changed := [name for name in fixed if getattr(head, name) != getattr(stored, name)]:
        raise _refused(f"the head changes {', '.join(changed)}")
    if head.snapshot != stored.snapshot and head.snapshot not in range(body.at, head.frames):
        raise _refused("the head names an old frame as its snapshot")
    # Not earlier than what is stored would be too strict: another machine's clock may be ahead. But the limit must not
    # move with the stored time, or many small steps would make the thread as old as somebody likes.
    if head.updated_at < min(stored.updated_at, now() - _SKEW):
        raise _refused("the head makes the thread older than it is")


def _check_log(head: Head, body: Append, end: str | None) -> None:
    """Raise `Refused` if the frames of the append `body` do not follow each other, or if `head`, the new head, does not
    describe the log that results. `end` is the digest of the stored log's last frame; None if the append does not begin
    at the end of that log, so that its first frame cannot be compared."""
    if head.frames != body.at + len(body.frames):
        raise _refused("the head has another number of frames than the log would have")
    for frame in body.frames:
        if not is_sound(frame) or end not in (None, bytes(frame[PREVIOUS]).hex()):
            raise _refused("a frame does not follow the one before it")
        end = bytes(frame[DIGEST]).hex()
    if end not in (None, head.digest):
        raise _refused("the head has another digest than the last frame")
    if not -1 <= head.snapshot < head.frames:
        raise _refused("the head names a snapshot that is not in the log")


def _check_names(stored: Head | None, head: Head) -> None:
    """Raise `Refused` if `head`, the new head in an append, has an id or a tag that is reserved for Clew. `stored` is
    the thread's head before the append, or None if there is no such thread. Tags that `stored` has may stay, and a
    thread that is new or incomplete may be marked as incomplete.

    `rekey` and `purge` recognise the copies that they make of threads by such ids and tags, and then replace the
    threads by these copies. So nobody else may set them. The exception is the inbox of a thread: whoever may append to a
    thread may post to it.
    """
    if _is_inbox(head):
        return
    if is_reserved(head.thread_id):
        raise _refused("the id is reserved for Clew")
    is_new = stored is None or is_part(stored)
    if PART in head.tags and not is_new:
        raise _refused("the head marks the thread as incomplete")
    for name, value in head.tags.items():
        is_known = stored is not None and stored.tags.get(name) == value
        if is_reserved(name) and not is_known and not (is_new and name in _IN_PROGRESS):
            raise _refused(f"the head has the tag {name[:40]!r}, which is reserved for Clew")


def _is_inbox(head: Head) -> bool:
    """Return whether this is the head of the inbox of a thread, with the id and the one tag that an inbox has."""
    log_id = head.tags.get(INBOX, "")
    of_thread = head.parent is not None and head.thread_id == inbox_id(head.parent[0], log_id)
    return of_thread and head.tags == {INBOX: log_id} and head.lease is None and head.status == "done"


def _refused(reason: str) -> Refused:
    return Refused("forbidden", f"this token may only add to threads, and {reason}; that needs the scope 'write'")
