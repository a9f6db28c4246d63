"""Garbage collection: delete blobs that no thread reaches, safely while other processes write.

To touch a blob is to set the time of its last use, which the store keeps, to now. So its grace period, in which it is
not deleted, starts again. A tree is a blob that points at others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import timedelta
from itertools import islice

import msgspec

from clew._runtime.clock import now
from clew.checkpointers import Checkpointer, HeadQuery
from clew.errors import Corrupt
from clew.log.blobs import tree_refs
from clew.threads.heads import INBOX, inbox_id
from clew.threads.reader import Progress

__all__ = ["Collected", "Cutoff", "below", "gc", "remove_blobs", "unreached"]

_OLD_LOGS = ("clew:old-log", "clew:rekeying-log")
"""Tags of the hidden copies that `purge_rewound` and `rekey` make while they replace a thread's log. The value is the
random id of the old log, whose inbox is still needed."""
_BATCH = 16
"""Number of blobs to read at once, at most. Blobs may be large."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What `gc` deleted, or would delete with `dry_run`: the numbers of blobs examined, kept and deleted, and the bytes
    freed."""

    examined: int
    """Number of blobs that nobody had touched (stored or asked for as a writer) during the grace period given to `gc`.
    """
    reachable: int
    """Number of the examined blobs that some thread reaches, directly or through other blobs. They stay."""
    deleted: int
    freed: int
    """Number of bytes that the deleted blobs took in the store."""
    dry_run: bool = False


async def gc(
    checkpointer: Checkpointer,
    *,
    grace: timedelta = timedelta(days=1),
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Collected:
    """Delete the blobs that no thread reaches and that nobody has touched during the grace period.

    `grace` is the length of that period. To touch a blob is to renew the time from which its grace period counts. A
    thread's refs are the blobs that it lists as needed. A tree is a blob that points at others. With `dry_run`, nothing
    is deleted, and the result says what would be.

    Safe while any number of processes write, fork and delete. Why no order of events can delete a blob that a thread
    reaches:

    1. Every writer touches a blob before a thread points at it. `put_blobs` touches it, whether or not it was there;
       `append` touches each of its refs, in one step with checking that they exist; `missing_blobs` touches too.
    2. First the blobs that nobody has touched for a grace period are listed, and after that the refs of all threads are
       read. The cutoff is the moment one grace period before this run began. `delete_blobs` checks again, in one step
       with the deletion, that nobody has touched the blob since the cutoff. A store counts back from the time of the
       deletion, so the time that this run has taken is added to the grace period. Otherwise a run that takes longer
       than the grace period could delete a blob that was touched during the run.
    3. Suppose that a blob is deleted and a thread points at it. The append that made the thread point at it touched the
       blob, and by (2) did so before the cutoff. So the append was made before the refs were read, the thread was
       listed (a thread that exists throughout is listed), its refs were read, and the blob was kept: a contradiction.
       If the thread was deleted meanwhile, it points at nothing. If it was forked before it was deleted, the fork put
       its blobs again, which is a touch.
    4. If more than the grace period passes between a touch and its append, the blob may be gone. Then the append raises
       `MissingBlob` and writes nothing. So every writer in Clew puts values again before it appends them elsewhere.
    5. A tree protects the blobs below it; they are read from the tree without any key. A writer that points at a tree
       that it did not just write must touch all blobs below it before it appends (`missing_blobs` touches the blobs
       that `below` returns). Trees are deleted before the blobs they point at, and a tree that was touched meanwhile
       keeps them. So every tree in the store is complete.

    A store must show an append in listings within the grace period after touching its refs. In the stores in memory, in
    SQLite and in files, the two are one step. If a single `delete_blobs` takes longer than the grace period,
    reachability is computed again, and deleted blobs that a thread reaches by then are put back from memory.

    Hidden threads that are still being copied, and inboxes, count like all others. Inboxes of threads that are gone are
    deleted first, if nothing was posted to them during the grace period. Raises `Corrupt` and deletes nothing if a thread
    or tree cannot be read, since it is unknown what it reaches. `progress` is called with the number of threads and
    blobs examined so far, and None because their total is unknown.
    """
    cutoff = Cutoff(grace)
    steps = Steps(progress)
    await _sweep_inboxes(checkpointer, grace, dry_run)
    listed = [digest async for digest in checkpointer.blobs(untouched_for=grace)]
    listing = Cutoff()
    doomed = await unreached(checkpointer, listed, steps)
    deleted, freed = 0, 0
    if dry_run:
        async for found in _read(checkpointer, sorted(doomed)):
            deleted, freed = deleted + len(found), freed + sum(map(len, found.values()))
            steps.done(len(found))
    else:
        deleted, freed = await remove_blobs(checkpointer, sorted(doomed), cutoff, listing, steps)
    return Collected(
        examined=len(listed),
        reachable=len(listed) - len(doomed),
        deleted=deleted,
        freed=freed,
        dry_run=dry_run,
    )


async def _sweep_inboxes(checkpointer: Checkpointer, grace: timedelta, dry_run: bool) -> None:
    """Delete the inboxes of threads that are gone, unless `dry_run` is set.

    An inbox stays if anything was posted to it within the grace period, if its thread exists with the log that it
    belongs to, or while another operation writes that log anew.
    """
    before = now() - grace
    async for inbox in checkpointer.heads(HeadQuery(prefix=f"{INBOX}:", updated_before=before)):
        log_id, parent = inbox.tags.get(INBOX), inbox.parent
        if log_id is None or parent is None or inbox.thread_id != inbox_id(parent[0], log_id):
            continue
        thread = await checkpointer.head(parent[0])
        if (thread is not None and thread.log_id == log_id) or await _is_replaced(checkpointer, log_id):
            continue
        again = await checkpointer.head(inbox.thread_id)
        if not dry_run and again is not None and again.frames == inbox.frames:
            await checkpointer.delete(inbox.thread_id)


async def _is_replaced(checkpointer: Checkpointer, log_id: str) -> bool:
    """Return whether `rekey` or `purge_rewound` is about to write a new log in place of this one, or was interrupted
    before the posts were carried over."""
    async for head in checkpointer.heads(HeadQuery(prefix="clew:")):
        if any(head.tags.get(name) == log_id for name in _OLD_LOGS):
            return True
    return False


class Cutoff:
    """A moment, now or a given time ago, measured by the wall clock and by the monotonic clock, in case the wall clock
    is changed."""

    def __init__(self, ago: timedelta = timedelta(0)) -> None:
        self._wall = time.time() - ago.total_seconds()
        self._steady = time.monotonic() - ago.total_seconds()

    def elapsed(self) -> timedelta:
        """Return how much time has passed since this moment. If the wall clock and the monotonic clock disagree about
        it, return the longer of the two times."""
        return timedelta(seconds=max(0.0, time.time() - self._wall, time.monotonic() - self._steady))

    def until(self, later: Cutoff) -> float:
        """Return the seconds from this moment to the moment `later`, by the monotonic clock."""
        return later._steady - self._steady


class Steps:
    """Counts the threads and blobs that were examined, and reports the count to `progress` if that is given."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._count = 0

    def done(self, count: int = 1) -> None:
        self._count += count
        if self._progress is not None:
            self._progress(self._count, None)


async def unreached(
    checkpointer: Checkpointer, digests: Iterable[str], steps: Steps | None = None, *, but: str | None = None
) -> set[str]:
    """Return the digests of those blobs among `digests` that no thread reaches.

    A thread reaches a blob directly, or through trees (blobs that point at others). The thread with the id `but` is
    ignored. `steps` counts the threads and blobs that were examined.
    """
    steps = steps or Steps()
    direct: set[str] = set()
    async for head in checkpointer.heads():
        if head.thread_id != but:
            direct |= await checkpointer.refs(head.thread_id)
        steps.done()
    left = set(digests) - direct
    if left:  # reading every reached blob, to follow trees, is expensive
        async for digest in _walk(checkpointer, direct, steps):
            left.discard(digest)
            if not left:
                break
    return left


async def below(checkpointer: Checkpointer, digests: Collection[str]) -> list[str]:
    """Return the digests of these blobs and of all blobs that they reach. A blob reaches others only if it is a tree: a
    blob that points at other blobs.

    A tree comes before the blobs it points at, unless another blob pointed at them earlier. Raises `Corrupt` for a
    damaged blob. A missing blob is listed and reaches nothing.
    """
    return [digest async for digest in _walk(checkpointer, digests, Steps())]


async def _walk(checkpointer: Checkpointer, digests: Collection[str], steps: Steps) -> AsyncIterator[str]:
    """Yield the digests of these blobs and of all blobs that they reach through trees (blobs that point at others).

    Blobs that a tree names as leaves are not read: they point at nothing, and may be many and large. `steps` counts the
    blobs that are read.
    """
    known = set(digests)
    waiting = sorted(known)  # in the same order in every process, so that a simulated run can be repeated
    for digest in waiting.copy():
        yield digest
    while waiting:
        batch = waiting[-_BATCH:]
        del waiting[-_BATCH:]
        for packed in (await checkpointer.get_blobs(batch)).values():
            trees, leaves = tree_refs(packed)
            waiting += sorted(set(trees) - known)
            for digest in (*trees, *leaves):
                if digest not in known:
                    known.add(digest)
                    yield digest
        steps.done(len(batch))


async def remove_blobs(
    checkpointer: Checkpointer,
    digests: Collection[str],
    cutoff: Cutoff,
    listing: Cutoff,
    steps: Steps | None = None,
    *,
    but: str | None = None,
) -> tuple[int, int]:
    """Delete these blobs, except those touched since the moment `cutoff`. Returns how many were deleted, and how many
    bytes they took.

    To touch a blob is to store it or to ask for it as a writer. The caller must have found that no thread needs these
    blobs, apart from the thread with the id `but`, and must have read the threads after the moment `listing`. `listing`
    must not be before `cutoff`. `steps` counts the blobs that were handled.

    A thread that begins to need one of these blobs meanwhile does not lose it: the thread's writer touches the blob, so
    the blob stays. Only if deleting a batch of blobs takes longer than the time from `cutoff` to `listing` is this
    uncertain. Then the threads are read again, and deleted blobs that one of them needs are put back.

    A tree (a blob that points at others) is deleted before the blobs it points at. A tree that stays because it was
    touched keeps all blobs below it. So every tree in the store is complete, even if the deletion is interrupted.
    """
    deleter = _Deleter(checkpointer, cutoff, cutoff.until(listing), steps or Steps(), but)
    pointed_at = await _tree_refs_among(checkpointer, digests)
    wanted = set(digests)
    above = Counter(ref for refs in pointed_at.values() for ref in refs if ref in wanted)
    level = [digest for digest in dict.fromkeys(digests) if not above[digest]]
    spared: set[str] = set()
    while level:
        gone = await deleter.delete([digest for digest in level if digest not in spared])
        following: list[str] = []
        for digest in level:
            for ref in pointed_at.get(digest, ()):
                if digest not in gone:
                    spared.add(ref)
                above[ref] -= 1
                if ref in wanted and not above[ref]:
                    following.append(ref)
        level = following
    return deleter.deleted, deleter.freed


async def _tree_refs_among(checkpointer: Checkpointer, digests: Collection[str]) -> dict[str, set[str]]:
    """Return, for each of these blobs that is a tree (points at other blobs), the digests of the blobs it points at."""
    found: dict[str, set[str]] = {}
    async for held in _read(checkpointer, digests):
        for digest, packed in held.items():
            trees, leaves = tree_refs(packed)
            if trees or leaves:
                found[digest] = {*trees, *leaves}
    return found


class _Deleter:
    """Deletes blobs, and counts them and their bytes. After a batch whose deletion took longer than `room` seconds, it
    checks whether a thread has begun to need a deleted blob meanwhile, and puts such blobs back; in a shorter time that
    cannot happen. The thread with the id `but` is ignored in this check."""

    def __init__(self, checkpointer: Checkpointer, cutoff: Cutoff, room: float, steps: Steps, but: str | None) -> None:
        self._checkpointer = checkpointer
        self._cutoff = cutoff
        self._room = room
        self._steps = steps
        self._but = but
        self.deleted = 0
        self.freed = 0

    async def delete(self, digests: Sequence[str]) -> set[str]:
        """Delete these blobs, except those that a writer stored or asked for since the cutoff given to this object.

        Returns the digests of the blobs that no longer exist. Deletes in batches. If a batch took longer than the
        `room` seconds given to this object, a thread may have come to need a deleted blob; this is checked, and such a
        blob is put back.
        """
        gone = set(digests)
        async for held in _read(self._checkpointer, digests):
            began = time.monotonic()
            await self._checkpointer.delete_blobs(held, untouched_for=self._cutoff.elapsed())
            late = time.monotonic() - began > self._room
            stayed = await _still_there(self._checkpointer, held)
            removed = held.keys() - stayed
            if late and (needed := removed - await unreached(self._checkpointer, removed, but=self._but)):
                await self._checkpointer.put_blobs({digest: held[digest] for digest in needed})
                stayed |= needed
                removed -= needed
            gone -= stayed
            self.deleted += len(removed)
            self.freed += sum(len(held[digest]) for digest in removed)
            self._steps.done(len(held))
        return gone


async def _read(checkpointer: Checkpointer, digests: Iterable[str]) -> AsyncIterator[dict[str, bytes]]:
    """Yield these blobs, at most 16 at a time, as dictionaries from digest to bytes. Missing blobs are left out.

    A damaged blob comes as empty bytes and raises no error, so that gc can delete it too. Its size then counts as 0.
    """
    left = iter(digests)
    while batch := list(islice(left, _BATCH)):
        try:
            found = await checkpointer.get_blobs(batch)
        except Corrupt:
            found = {}
            for digest in batch:
                try:
                    found |= await checkpointer.get_blobs([digest])
                except Corrupt:
                    found[digest] = b""
        yield found


async def _still_there(checkpointer: Checkpointer, digests: Collection[str]) -> set[str]:
    """Return which of these blobs still exist, by their digests. Asking in this way does not keep gc from deleting
    them."""
    return {digest async for found in _read(checkpointer, digests) for digest in found}
