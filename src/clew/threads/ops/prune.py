"""Prune: delete old threads by age, count, status or tags, but never one that a process works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.checkpointers.heads import STATUSES, Status
from clew.errors import Conflict, InvalidInput, ThreadBusy
from clew.threads.heads import PART, is_inbox
from clew.threads.inbox import remove
from clew.threads.leases import is_live, note_seen, shown_status, wait_until_free
from clew.threads.ops.purge import fence

__all__ = ["Pruned", "prune"]


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What `prune` deleted, or would delete with `dry_run`: the ids of these threads, how many threads stayed, and the
    ids of those that stayed because a process holds them or changed them meanwhile."""

    deleted: tuple[str, ...]
    kept: int
    """Number of threads that `status`, `tags` and `prefix` select and that stayed, because they are new enough or in
    use."""
    busy: tuple[str, ...] = ()
    """Ids of threads that would have been deleted, but stayed because a process holds them or changed them meanwhile.
    """
    dry_run: bool = False


async def prune(
    checkpointer: Checkpointer,
    *,
    older_than: timedelta | None = None,
    keep: int | None = None,
    status: Status | tuple[Status, ...] | None = None,
    tags: Mapping[str, str] | None = None,
    prefix: str = "",
    dry_run: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> Pruned:
    """Delete the threads that meet all given conditions. Raises `InvalidInput` if no condition is given.

    `status`, `tags` and `prefix` (of the thread's id) select threads. Of these, the newest `keep` stay, and so do those
    that changed within `older_than`. A thread that was running when its process died counts as interrupted. With
    `dry_run`, nothing is deleted, and the result says what would be. `progress` is called with the number of threads
    handled so far and the number of threads to delete.

    A thread with a live lease is never deleted. If it is unknown whether a holder is alive, for example on another
    machine, this waits 30 seconds to see whether it renews its lease. One such wait serves for all threads. With
    `dry_run` there is no wait: a lease counts as live until the time that is written in it, unless its holder is
    certainly gone. Before a thread is deleted, its lease is taken, which fails if the thread was opened or changed
    since it was listed; such a thread stays. Hidden threads that are still being copied are neither counted nor
    deleted. The inbox of a thread goes with the thread. Blobs stay until `gc`. Raises `Corrupt` and deletes nothing if a
    damaged thread cannot be listed.
    """
    _check(older_than, keep, status, tags, prefix)
    wanted = HeadQuery(prefix=prefix, tags=dict(tags or {}))
    statuses = HeadQuery(status=status).statuses()
    matching = [
        head
        async for head in checkpointer.heads(wanted)
        if PART not in head.tags and not is_inbox(head) and (statuses is None or shown_status(head) in statuses)
    ]
    before = None if older_than is None else datetime.now(UTC) - older_than
    doomed = [head for head in matching[keep or 0 :] if before is None or head.updated_at < before]
    for head in doomed:
        if head.lease is not None:
            note_seen(head)  # now, so that the waits for the ends of all these leases run at the same time
    deleted: list[str] = []
    busy: list[str] = []
    for done, head in enumerate(reversed(doomed), start=1):  # the oldest first
        gone = not is_live(head.lease) if dry_run else await _delete(checkpointer, head)
        (deleted if gone else busy).append(head.thread_id)
        if progress is not None:
            progress(done, len(doomed))
    return Pruned(deleted=tuple(deleted), kept=len(matching) - len(deleted), busy=tuple(busy), dry_run=dry_run)


def _check(
    older_than: timedelta | None,
    keep: int | None,
    status: Status | tuple[Status, ...] | None,
    tags: Mapping[str, str] | None,
    prefix: str,
) -> None:
    if older_than is None and keep is None and status is None and not tags and not prefix:
        raise InvalidInput(
            "prune without a condition would delete every thread. Give older_than, keep, status, tags or prefix."
        )
    if keep is not None and keep < 0:
        raise InvalidInput(f"keep is the number of threads that stay, 0 or more, not {keep}")
    if older_than is not None and older_than < timedelta(0):
        raise InvalidInput(f"older_than cannot be negative: {older_than}")
    for one in HeadQuery(status=status).statuses() or ():
        if one not in STATUSES:
            raise InvalidInput(f"{one!r} is not a status. Use one of {', '.join(STATUSES)}.")


async def _delete(checkpointer: Checkpointer, listed: Head) -> bool:
    """Delete the thread if it has not changed since the head `listed` was read and no process holds it. Returns whether
    the thread is gone now."""
    head = await checkpointer.head(listed.thread_id)
    if head is None:
        return True
    if (head.log_id, head.frames, head.updated_at) != (listed.log_id, listed.frames, listed.updated_at):
        return False
    try:
        await wait_until_free(checkpointer, head)
        await fence(checkpointer, head, "pruning")
    except (Conflict, ThreadBusy):
        return False
    await remove(checkpointer, head.thread_id)
    return True
