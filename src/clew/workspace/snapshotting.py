"""Takes a snapshot: walk, compare with what was known, read what is new, store it, and tie it together in trees.

The event loop only stores; walking, reading and packing are done on threads. zstd, blake3 and the system's calls let go of
the interpreter's lock, so two of them keep two cores busy.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from clew._runtime.telemetry import span
from clew.checkpointers import Checkpointer
from clew.errors import MissingBlob
from clew.workspace import statcache
from clew.workspace._drafting import Draft, Plan, compare
from clew.workspace._packing import Content, Outbox, Reader
from clew.workspace._threads import Threads
from clew.workspace.limits import Limits
from clew.workspace.manifest import EARLIEST, LATEST, FolderNode, Tree, pack_folder
from clew.workspace.scanning import CHANGED, Fact, Root, Scan, scan
from clew.workspace.snapshots import Progress, SnapshotRef
from clew.workspace.statcache import Moment, StatCache

__all__ = ["CONFIRM_AFTER", "TOP", "Walked", "snapshot"]

log = logging.getLogger("clew.workspace")

TOP = b"workspace"
"""The one name in the tree that a snapshot's digest names: the root folder itself, for its mode and its time."""
CONFIRM_AFTER = timedelta(hours=12)
"""Half of gc's grace: what the store was not asked about for this long may be about to go."""
_READERS = 2


class Walked(NamedTuple):
    """What a restore has to know of the walk beside the snapshot that came of it."""

    dev: int
    ino: int
    """Which folder it was."""
    leftovers: tuple[bytes, ...]
    """What a restore that was interrupted has left in it."""


class _Lost(Exception):
    """The store no longer has what was known to be there."""

    def __init__(self, digests: set[str]) -> None:
        self.digests = digests


class _LinksMoved(Exception):
    """Of several names of one file, one was another file by the time it was read."""


async def snapshot(
    path: Path,
    checkpointer: Checkpointer,
    *,
    limits: Limits,
    ignore: tuple[str, ...],
    known: StatCache | None,
    progress: Progress | None = None,
) -> tuple[SnapshotRef, StatCache, Walked]:
    """Put what the folder holds into the store, durably. `known` is what the last call returned, None for the first.

    Cancelling stops it within a file or a chunk. What it has stored by then is garbage for gc, and nothing else is left.
    """
    with span("clew.snapshot") as current, Root(path) as root, Threads(_READERS) as threads:
        taking = _Taking(root, checkpointer, limits, ignore, threads, progress)
        ref, cache = await _take(taking, known)
        current.set(files=ref.files, bytes=ref.bytes, new_bytes=ref.new_bytes, skipped=len(ref.skipped))
    return ref, cache, Walked(root.facts.st_dev, root.facts.st_ino, tuple(taking.found.leftovers))


async def _take(taking: _Taking, known: StatCache | None) -> tuple[SnapshotRef, StatCache]:
    """Start over if what was known or seen turns out not to hold: once for each reason there may be."""
    links = True
    missing: set[str] = set()
    for _ in range(3):
        try:
            return await taking.take(known, links=links)
        except _Lost as error:
            log.info("the store no longer has what an earlier snapshot put there: all of the workspace is read again")
            known, missing = StatCache(), error.digests
        except _LinksMoved:
            links = False
    raise MissingBlob(missing)


class _Taking:
    """One snapshot under way."""

    def __init__(
        self,
        root: Root,
        checkpointer: Checkpointer,
        limits: Limits,
        ignore: tuple[str, ...],
        threads: Threads,
        progress: Progress | None,
    ) -> None:
        self._root = root
        self._checkpointer = checkpointer
        self._limits = limits
        self._ignore = ignore
        self._threads = threads
        self._progress = progress
        self.found = Scan()
        """The last walk."""
        self._sent: set[str] = set()
        self._new_bytes = 0
        self._read_so_far = 0

    async def take(self, last: StatCache | None, *, links: bool) -> tuple[SnapshotRef, StatCache]:
        began = Moment.now()
        self._sent.clear()
        plan, known = await self._threads.run(lambda: self._look(last, links))
        self.found = plan.found
        confirmed = known.confirmed if known.folders else began
        if _is_old(confirmed):
            confirmed = Moment.now()
            if missing := await self._checkpointer.missing_blobs(plan.all_taken_over()):
                plan = compare(plan.found, known.without(missing))
        if plan.drafts:
            await self._read(plan)
            await self._tie(plan)
        top = await self._top(plan, known)
        cache = StatCache({folder.path: plan.records[folder] for folder in plan.found.folders}, top, confirmed)
        if _is_old(confirmed):  # this snapshot has taken that long
            cache = msgspec.structs.replace(cache, confirmed=Moment.now())
            await self._ask(cache.digests())
        if cache != known:
            await self._threads.run(lambda: statcache.save(self._root.path, self._checkpointer, cache))
        return self._ref(plan, top), cache

    def _look(self, last: StatCache | None, links: bool) -> tuple[Plan, StatCache]:
        cache_folder = statcache.cache_folder()
        own = (*self._checkpointer.own_files, *([] if cache_folder is None else [cache_folder]))
        found = scan(self._root, self._limits, self._ignore, own, self._threads.go_on, links=links)
        known = statcache.load(self._root.path, self._checkpointer) if last is None else last
        return compare(found, known), known

    async def _read(self, plan: Plan) -> None:
        """Read what is new, on all threads at once, and store it as it comes."""
        waiting = plan.waiting()
        total = sum(map(len, waiting))
        reader = Reader(self._root, self._limits, self._checkpointer.keys, self._threads)
        outboxes = [self._outbox() for _ in range(_READERS)]
        self._read_so_far = 0

        def let_go() -> None:
            for outbox in outboxes:
                outbox.cancel()

        def tick() -> None:
            if self._progress is not None:
                self._progress(self._read_so_far, total)

        works = [lambda outbox=outbox: self._read_some(waiting, reader, outbox) for outbox in outboxes]
        await self._threads.run_all(works, let_go=let_go, tick=tick if self._progress else None)
        tick()

    def _read_some(self, waiting: deque[list[tuple[Draft, Fact]]], reader: Reader, outbox: Outbox) -> None:
        while waiting:
            self._threads.go_on()
            try:
                names = waiting.popleft()
            except IndexError:  # another thread took the last
                break
            draft, seen = names[0]
            content = reader.read(draft.folder, seen, outbox)
            draft.contents[seen[0]] = content
            if seen[6] and _is_another(content, seen):
                raise _LinksMoved
            for other, also_seen in names[1:]:
                other.contents[also_seen[0]] = _renamed(content, also_seen[0])
            self._read_so_far += len(names)
        outbox.finish()

    async def _tie(self, plan: Plan) -> None:
        """Make the trees of all folders that have changed, and store them."""
        outbox = self._outbox()

        def work() -> None:
            for draft in plan.drafts:
                self._threads.go_on()
                record, packed = draft.tie(plan.records, self._checkpointer.keys)
                plan.records[draft.folder] = record
                outbox.add(record.digest, packed)
            outbox.finish()

        await self._threads.run_all([work], let_go=outbox.cancel)

    async def _top(self, plan: Plan, known: StatCache) -> str:
        """Make the snapshot itself, and see that the store has what it was not given again."""
        facts = self._root.facts
        node = FolderNode(TOP, stat.S_IMODE(facts.st_mode), min(max(facts.st_mtime_ns, EARLIEST), LATEST))
        digest, packed = pack_folder(Tree((node,), (plan.root.digest,)), self._checkpointer.keys)
        taken_over = plan.taken_over()
        if digest == known.top:
            taken_over.add(digest)
        else:
            await self._store({digest: packed})
        await self._ask(taken_over)
        return digest

    async def _ask(self, digests: set[str]) -> None:
        if digests and (missing := await self._checkpointer.missing_blobs(digests)):
            raise _Lost(missing)

    def _outbox(self) -> Outbox:
        return Outbox(self._store, asyncio.get_running_loop(), self._threads)

    async def _store(self, blobs: dict[str, bytes]) -> None:
        """Store those of these blobs that the store does not have. Each is looked at once in a snapshot."""
        digests = blobs.keys() - self._sent
        self._sent |= digests
        missing = await self._checkpointer.missing_blobs(digests) if digests else ()
        if missing:
            await self._checkpointer.put_blobs({digest: blobs[digest] for digest in missing})
            self._new_bytes += sum(len(blobs[digest]) for digest in missing)

    def _ref(self, plan: Plan, top: str) -> SnapshotRef:
        records = plan.records.values()
        problems = [problem for draft in plan.drafts for problem in draft.problems()]
        skipped = sorted([*plan.found.skipped, *problems], key=lambda skipped: skipped.path)
        return SnapshotRef(
            top,
            sum(record.files for record in records),
            sum(record.size for record in records),
            self._new_bytes,
            tuple(skipped),
        )


def _is_old(confirmed: Moment) -> bool:
    return confirmed.age() > CONFIRM_AFTER.total_seconds()


def _is_another(content: Content, seen: Fact) -> bool:
    """Whether a name is gone, or was something else by the time it was read. One that could not be read is not that."""
    if content.fact is not None:
        return content.fact[5] != seen[5]
    return content.problem in (None, CHANGED)


def _renamed(content: Content, name: bytes) -> Content:
    """The same file under another of its names."""
    if content.node is None or content.fact is None:
        return content
    return Content(msgspec.structs.replace(content.node, name=name), content.leaves, (name, *content.fact[1:]))
