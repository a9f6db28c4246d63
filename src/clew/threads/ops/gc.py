"""Garbage: blobs that no thread reaches any more. Found and removed while others go on writing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import timedelta
from itertools import islice

import msgspec

from clew.checkpointers import Checkpointer
from clew.errors import Corrupt
from clew.log.blobs import tree_refs
from clew.threads.reader import Progress

__all__ = ["Collected", "Cutoff", "below", "gc", "remove_blobs", "unreached"]

_BATCH = 16
"""Blobs that are read at once: they may be large."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What `gc` did, or with `dry_run` would do."""

    examined: int
    """Blobs that nobody had touched during the grace."""
    reachable: int
    """Of those, how many some thread reaches."""
    deleted: int
    freed: int
    """Bytes, as they were stored."""
    dry_run: bool = False


async def gc(
    checkpointer: Checkpointer,
    *,
    grace: timedelta = timedelta(days=1),
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Collected:
    """Delete the blobs that no thread reaches and that nobody has touched during the grace.

    Safe while others write, fork and delete, in any number of processes. Why no order of events can delete a blob that
    a thread reaches:

    1. Whoever lets a thread point at a blob touches it. `put_blobs` does, whether or not the blob was there, `append`
       does for each of its refs, as one with the check that they are there, and so does `missing_blobs`.
    2. What may go was listed first, then the refs of all threads were read, and what is deleted was touched by nobody
       since one grace *before* that listing began. `delete_blobs` looks at that moment again, as one with the deletion,
       and the time this run has taken is added to the grace: else one that takes longer than the grace would count as
       untouched what was touched while it ran.
    3. So take a blob that is deleted and a thread that points at it. The append that made it do so had touched the
       blob: not after that moment (2), so before it. Then the append was made before the refs were read, and the
       thread was listed, for a thread that exists throughout is listed. Its refs were read, and the blob was kept. If
       the thread was deleted while it was listed, it does not point at anything; if it was forked before that, the fork
       put the blobs of its frame anew, which is a touch.
    4. Between a touch and the append it was for, a blob may be gone if that took longer than the grace. Then the append
       is `MissingBlob` and nothing is written: whoever loads a thread and writes its values elsewhere, however much
       later, puts them again first, as every writer in Clew does.
    5. A tree protects what is below it, read from the tree itself and without any key. Whoever points at a tree that it
       did not write just now must touch all that is below (`missing_blobs` of `below`) before it appends. Trees are
       deleted before what they point at, and one that was touched meanwhile keeps what is below it: a tree that is in
       the store is whole.

    What this asks of a store: an append becomes visible to a listing within the grace of touching its refs. In memory,
    SQLite and files both are one step. Should one `delete_blobs` take longer than the grace, what threads reach is looked
    up again, and what they reach by now is put back from memory.

    Threads that are hidden because they are still being copied count like all others. If a thread or a tree cannot be
    read, it is not known what it reaches: that is `Corrupt` and nothing is deleted. `progress` hears how many threads and
    blobs have been looked at.
    """
    cutoff = Cutoff(grace)
    steps = Steps(progress)
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


class Cutoff:
    """A moment of the past, told by both clocks of this machine: should one be set, the other one still counts."""

    def __init__(self, ago: timedelta = timedelta(0)) -> None:
        self._wall = time.time() - ago.total_seconds()
        self._steady = time.monotonic() - ago.total_seconds()

    def elapsed(self) -> timedelta:
        """How long ago it was; rather too long than too short."""
        return timedelta(seconds=max(0.0, time.time() - self._wall, time.monotonic() - self._steady))

    def until(self, later: Cutoff) -> float:
        return later._steady - self._steady


class Steps:
    """Counts what has been looked at."""

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
    """Those of these blobs that no thread reaches, directly or through trees; `but` names one that does not count."""
    steps = steps or Steps()
    direct: set[str] = set()
    async for head in checkpointer.heads():
        if head.thread_id != but:
            direct |= await checkpointer.refs(head.thread_id)
        steps.done()
    left = set(digests) - direct
    if left:  # only then is it worth reading every blob that is reached, for what trees point at
        async for digest in _walk(checkpointer, direct, steps):
            left.discard(digest)
            if not left:
                break
    return left


async def below(checkpointer: Checkpointer, digests: Collection[str]) -> list[str]:
    """These blobs and all that trees among them reach, each tree before what it points at unless something else does too.

    A damaged one is `Corrupt`; one that is missing reaches nothing.
    """
    return [digest async for digest in _walk(checkpointer, digests, Steps())]


async def _walk(checkpointer: Checkpointer, digests: Collection[str], steps: Steps) -> AsyncIterator[str]:
    """Leaves of trees are named and not read: they may be many, and large."""
    known = set(digests)
    waiting = list(known)
    for digest in known.copy():
        yield digest
    while waiting:
        batch = waiting[-_BATCH:]
        del waiting[-_BATCH:]
        for packed in (await checkpointer.get_blobs(batch)).values():
            trees, leaves = tree_refs(packed)
            waiting += set(trees) - known
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
    """Delete those of these blobs that nobody has touched since the cutoff. Returns how many that were, and their bytes.

    The caller has read the refs of all threads, from `listing` on, and no thread reached any of these. A store reckons
    back from when it gets to a deletion, so whatever that takes moves the cutoff on. As long as it stays before the
    listing that is no harm; else a thread may point by now at what was deleted, and gets it back.

    A tree goes before what it points at, and one that stays, because somebody has touched it, keeps all below it. So
    whoever finds a tree in a store finds what is below it too, also if this is cut short.
    """
    deleting = _Deleting(checkpointer, cutoff, cutoff.until(listing), steps or Steps(), but)
    pointed_at = await _tree_refs_among(checkpointer, digests)
    wanted = set(digests)
    above = Counter(ref for refs in pointed_at.values() for ref in refs if ref in wanted)
    level = [digest for digest in dict.fromkeys(digests) if not above[digest]]
    spared: set[str] = set()
    while level:
        gone = await deleting.delete([digest for digest in level if digest not in spared])
        following: list[str] = []
        for digest in level:
            for ref in pointed_at.get(digest, ()):
                if digest not in gone:
                    spared.add(ref)
                above[ref] -= 1
                if ref in wanted and not above[ref]:
                    following.append(ref)
        level = following
    return deleting.deleted, deleting.freed


async def _tree_refs_among(checkpointer: Checkpointer, digests: Collection[str]) -> dict[str, set[str]]:
    """What the trees among these point at."""
    found: dict[str, set[str]] = {}
    async for held in _read(checkpointer, digests):
        for digest, packed in held.items():
            trees, leaves = tree_refs(packed)
            if trees or leaves:
                found[digest] = {*trees, *leaves}
    return found


class _Deleting:
    """Deletions under way, and what they have come to."""

    def __init__(self, checkpointer: Checkpointer, cutoff: Cutoff, room: float, steps: Steps, but: str | None) -> None:
        self._checkpointer = checkpointer
        self._cutoff = cutoff
        self._room = room
        self._steps = steps
        self._but = but
        self.deleted = 0
        self.freed = 0

    async def delete(self, digests: Sequence[str]) -> set[str]:
        """Those of these that are not there any more."""
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
    """These blobs, a few at a time. One that is damaged comes empty: nobody needs it, and it has no size one could trust."""
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
    """Which of these were not deleted. Asks without touching them."""
    return {digest async for found in _read(checkpointer, digests) for digest in found}
