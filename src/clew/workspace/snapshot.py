"""Take a snapshot: walk over the folder, compare it with the last snapshot, read and store new files, and make the
trees (blobs that each list the content of one folder).

The event loop only stores. Walking, reading and packing are done on OS threads. zstd, blake3 and system calls release
the interpreter's lock, so two OS threads keep two cores busy.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from clew._runtime.clock import Moment
from clew._runtime.telemetry import span
from clew.checkpointers import Checkpointer
from clew.errors import MissingBlob
from clew.log.keys import Keyring
from clew.workspace import statcache
from clew.workspace.manifest import (
    EARLIEST,
    LATEST,
    FileNode,
    FolderNode,
    Limits,
    LinkNode,
    Node,
    Progress,
    Skipped,
    SnapshotRef,
    Tree,
    pack_folder,
    shown,
)
from clew.workspace.pack import Content, Outbox, Reader, Threads
from clew.workspace.scan import CHANGED, Fact, Folder, Root, Scan, scan
from clew.workspace.statcache import Record, StatCache, split_digests

__all__ = ["CONFIRM_AFTER", "TOP", "Draft", "SnapshotPlan", "Walked", "compare", "snapshot"]

log = logging.getLogger("clew.workspace")

TOP = b"workspace"
"""The name of the root folder in the top tree of a snapshot. The top tree is a blob that lists nothing but the root
folder, with its mode and time. Its digest is the digest of the snapshot."""
CONFIRM_AFTER = timedelta(hours=12)
"""If the store was last asked longer ago than this, a new snapshot asks it again whether it has all blobs of the last
snapshot. It is half of gc's grace, the time after which a blob that nobody asked for may be deleted."""
_READERS = 2


class Walked(NamedTuple):
    """What a restore needs to know about the folder: which folder it is (device and inode), and the temporary files
    that an interrupted restore left in it. The snapshot that is taken before the restore finds this out while it
    walks over the folder."""

    dev: int
    ino: int
    """The inode of the workspace's folder. Together with `dev`, it identifies the folder."""
    leftovers: tuple[bytes, ...]
    """The paths of temporary files that an interrupted restore left in the folder."""


class _Lost(Exception):
    """Raised if the store no longer has blobs that an earlier snapshot put there. `digests` names them. The snapshot is
    then taken again, and all files are read."""

    def __init__(self, digests: set[str]) -> None:
        self.digests = digests


class _LinksMoved(Exception):
    """Raised if one of several names (hard links) of a file is gone, or has become another file, by the time it is
    read. The snapshot is then taken again, and treats such names as separate files."""


async def snapshot(
    path: Path,
    checkpointer: Checkpointer,
    *,
    limits: Limits,
    ignore: tuple[str, ...],
    known: StatCache | None,
    progress: Progress | None = None,
) -> tuple[SnapshotRef, StatCache, Walked]:
    """Take a snapshot of the folder and store it durably. Returns the snapshot, the cache for the next call, and what a
    restore needs to know about the folder.

    The cache says what this snapshot saw, so that the next one does not read unchanged files again. `known` is the
    cache that the last call returned, or None to load it from the disk. `ignore` are patterns of names to leave out.
    `progress` is called with the number of files read so far and the number of files to read.

    If the call is cancelled, it stops at the next file or chunk (part of a file), and leaves nothing behind but blobs,
    which gc removes.
    """
    with span("clew.snapshot") as current, Root(path) as root, Threads(_READERS) as threads:
        builder = _SnapshotBuilder(root, checkpointer, limits, ignore, threads, progress)
        ref, cache = await _take(builder, known)
        current.set(files=ref.files, bytes=ref.bytes, new_bytes=ref.new_bytes, skipped=len(ref.skipped))
    return ref, cache, Walked(root.facts.st_dev, root.facts.st_ino, tuple(builder.found.leftovers))


async def _take(builder: _SnapshotBuilder, known: StatCache | None) -> tuple[SnapshotRef, StatCache]:
    """Take a snapshot. Returns it, and the cache (what it saw) for the next one. `known` is the cache of the last
    snapshot, or None to load it from the disk. Starts again, at most twice, if the store has lost blobs of the last
    snapshot, or if a file with several names (hard links) was replaced meanwhile. Raises `MissingBlob` if that does not
    help."""
    links = True
    missing: set[str] = set()
    for _ in range(3):
        try:
            return await builder.take(known, links=links)
        except _Lost as error:
            log.info("the store no longer has what an earlier snapshot put there: all of the workspace is read again")
            known, missing = StatCache(), error.digests
        except _LinksMoved:
            links = False
    raise MissingBlob(missing)


class _SnapshotBuilder:
    """Takes one snapshot of a workspace's folder."""

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
        """The result of the last walk over the folder."""
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
        if _is_old(confirmed):  # taking this snapshot has taken that long
            cache = msgspec.structs.replace(cache, confirmed=Moment.now())
            await self._ask(cache.digests())
        if cache != known:
            await self._threads.run(lambda: statcache.save(self._root.path, self._checkpointer, cache))
        return self._ref(plan, top), cache

    def _look(self, last: StatCache | None, links: bool) -> tuple[SnapshotPlan, StatCache]:
        cache_folder = statcache.cache_folder()
        own = (*self._checkpointer.own_files, *([] if cache_folder is None else [cache_folder]))
        found = scan(self._root, self._limits, self._ignore, own, self._threads.go_on, links=links)
        known = statcache.load(self._root.path, self._checkpointer) if last is None else last
        return compare(found, known), known

    async def _read(self, plan: SnapshotPlan) -> None:
        """Read all new and changed files on several OS threads, and store the chunks (parts) that they are cut into.
        Reports progress meanwhile."""
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

    async def _tie(self, plan: SnapshotPlan) -> None:
        """Make and store the trees (blobs that list a folder's content) of all folders that have changed."""
        outbox = self._outbox()

        def work() -> None:
            for draft in plan.drafts:
                self._threads.go_on()
                record, packed = draft.tie(plan.records, self._checkpointer.keys)
                plan.records[draft.folder] = record
                outbox.add(record.digest, packed)
            outbox.finish()

        await self._threads.run_all([work], let_go=outbox.cancel)

    async def _top(self, plan: SnapshotPlan, known: StatCache) -> str:
        """Make and store the top tree, the blob that names the root folder, and return its digest: the digest of the
        snapshot. `known` is the cache of the last snapshot, which says what that snapshot saw and stored. Raises
        `_Lost` if the store no longer has a blob that this snapshot takes over from the last one."""
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
        """Store these blobs, except those that the store already has. During one snapshot, the store is asked about
        each blob only once."""
        digests = blobs.keys() - self._sent
        self._sent |= digests
        missing = await self._checkpointer.missing_blobs(digests) if digests else ()
        if missing:
            await self._checkpointer.put_blobs({digest: blobs[digest] for digest in missing})
            self._new_bytes += sum(len(blobs[digest]) for digest in missing)

    def _ref(self, plan: SnapshotPlan, top: str) -> SnapshotRef:
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
    """Return whether a file was gone, or replaced by another one, by the time it was read. `seen` are the facts (such
    as the inode) that the walk over the workspace saw before, and `content` is the result of reading. Returns False if
    the file could not be read for another reason."""
    if content.fact is not None:
        return content.fact[5] != seen[5]
    return content.problem in (None, CHANGED)


def _renamed(content: Content, name: bytes) -> Content:
    """Return a copy of `content`, the result of reading a file, with `name` in place of the file's name. Used for a
    further name (hard link) of the same file, so that the file is not read again."""
    if content.node is None or content.fact is None:
        return content
    return Content(msgspec.structs.replace(content.node, name=name), content.leaves, (name, *content.fact[1:]))


_MANY = 1000
_encode = msgspec.msgpack.Encoder().encode
_decode_facts = msgspec.msgpack.Decoder(list[Fact]).decode
_decode_nodes = msgspec.msgpack.Decoder(list[Node]).decode


class Draft:
    """A folder that has changed since the last snapshot, so that a new tree (the blob that lists its content) has to be
    made. Unchanged files are taken over from the last snapshot, the others are read."""

    def __init__(self, folder: Folder, last: Record | None) -> None:
        self.folder = folder
        self.contents: dict[bytes, Content] = {}
        """The result of reading each file and link, by name. Those that have not changed are in it from the start,
        taken over from the last snapshot. Those in `to_read` are added once they have been read."""
        self.to_read: list[Fact] = []
        self._taken_over: list[str] = []
        self._last = last
        known = {} if last is None else _known(last)
        for fact in folder.facts:
            if stat.S_ISDIR(fact[1]):
                continue
            content = known.get(fact)
            if content is None:
                self.to_read.append(fact)
            else:
                self.contents[fact[0]] = content
                self._taken_over.append(content.leaves)

    def tie(self, records: dict[Folder, Record], keys: Keyring | None) -> tuple[Record, bytes]:
        """Make the folder's tree (the blob that lists its content). Returns the record of this folder for the cache, by
        which the next snapshot sees whether the folder has changed, and the bytes of the blob. `records` has such
        records of the folders inside this one. `keys` are the encryption keys of the store, None if it has none."""
        facts: list[Fact] = []
        nodes: list[Node] = []
        hexed: list[str] = []
        files = size = 0
        for fact in self.folder.facts:
            if stat.S_ISDIR(fact[1]):
                facts.append(fact)
                nodes.append(FolderNode(fact[0], stat.S_IMODE(fact[1]), fact[3]))
                continue
            content = self.contents[fact[0]]
            if content.node is None or content.fact is None:
                continue
            facts.append(content.fact)
            nodes.append(content.node)
            hexed.append(content.leaves)
            if isinstance(content.node, FileNode):
                files += 1
                size += content.node.size
        trees = tuple(records[below].digest for below in self.folder.folders)
        leaves = "".join(hexed)
        digest, packed = pack_folder(Tree(tuple(nodes), trees, tuple(split_digests(leaves))), keys)
        remembered = nodes if keys is None else [_without_content(node) for node in nodes]
        return Record(_encode(facts), digest, trees, _encode(remembered), bytes.fromhex(leaves), files, size), packed

    def taken_over(self) -> list[str]:
        """Return the digests of the chunks (parts of files) in this folder that are already stored, because the last
        snapshot had them and their files have not changed."""
        return split_digests("".join(self._taken_over))

    def stands_for_taken_over(self) -> list[str]:
        """Return the digests to ask the store for, to learn whether it still has the chunks (parts of files) that this
        folder takes over from the last snapshot. These are the chunks' own digests. If there are more than 1,000
        chunks, the result is only the digest of the folder's last tree (the blob that lists its content), because
        asking for each chunk takes time, and gc deletes a tree and its chunks together."""
        chunks = self.taken_over()
        return chunks if self._last is None or len(chunks) <= _MANY else [self._last.digest]

    def problems(self) -> Iterator[Skipped]:
        for name, content in self.contents.items():
            if content.problem is not None:
                yield Skipped(shown(self.folder.at(name)), content.problem)


class SnapshotPlan:
    """The result of comparing a walk over the workspace with the last snapshot: which folders are unchanged, and for
    which a new tree (the blob that lists a folder's content) has to be made."""

    def __init__(self, found: Scan) -> None:
        self.found = found
        self.records: dict[Folder, Record] = {}
        """The cache records of all unchanged folders, and of changed folders once their trees are made."""
        self.drafts: list[Draft] = []
        """The folders that have changed. Each comes after the folders in it."""
        self.kept: list[Record] = []
        """The cache records of unchanged folders. Each comes after the records of the folders in it."""

    @property
    def root(self) -> Record:
        return self.records[self.found.folders[0]]

    def waiting(self) -> deque[list[tuple[Draft, Fact]]]:
        """Return the files and links that have to be read. Each is a list with a pair for each of its names: mostly
        one, but a file may have several (hard links). A pair is the changed folder that holds the name, and the facts
        (name, size, times and so on) that the walk over the workspace saw."""
        groups: deque[list[tuple[Draft, Fact]]] = deque()
        linked: dict[bytes, list[tuple[Draft, Fact]]] = {}
        for draft in reversed(self.drafts):
            for fact in draft.to_read:
                group = linked.setdefault(fact[6], []) if fact[6] else []
                if not group:
                    groups.append(group)
                group.append((draft, fact))
        return groups

    def taken_over(self) -> set[str]:
        """Return the digests of some blobs, by which the store can be asked whether it still has everything that this
        snapshot takes over from the last one. These are the topmost unchanged trees (a tree lists a folder), and the
        unchanged chunks (parts of files) of changed folders."""
        if not self.drafts:
            return {self.root.digest}
        uppermost = {below for draft in self.drafts for below in draft.folder.folders}
        uppermost -= {draft.folder for draft in self.drafts}
        return {self.records[folder].digest for folder in uppermost}.union(
            *(draft.stands_for_taken_over() for draft in self.drafts)
        )

    def all_taken_over(self) -> set[str]:
        """Return the digests of all blobs that this snapshot takes over from the last one."""
        below = {digest for record in self.kept for digest in record.digests()}
        return below.union(*(draft.taken_over() for draft in self.drafts))


def compare(found: Scan, known: StatCache) -> SnapshotPlan:
    """Compare a walk over the workspace with `known`, the cache of the last snapshot, which says what that snapshot
    saw. Returns which folders are unchanged and which have changed. Folders are compared as encoded bytes, without
    decoding them."""
    plan = SnapshotPlan(found)
    for folder in reversed(found.folders):
        last = known.folders.get(folder.path)
        if last is not None and last.facts == _encode(folder.facts) and _same_below(folder, last, plan.records):
            plan.records[folder] = last
            plan.kept.append(last)
        else:
            plan.drafts.append(Draft(folder, last))
    return plan


def _same_below(folder: Folder, last: Record, records: dict[Folder, Record]) -> bool:
    return all(
        below in records and records[below].digest == digest
        for below, digest in zip(folder.folders, last.trees, strict=True)
    )


def _known(last: Record) -> dict[Fact, Content]:
    """Return the files and links that a folder had in the last snapshot, each as a `Content`, the result of reading it
    then, so that unchanged ones need not be read again. The keys are the facts (such as size and times) that the last
    snapshot saw. A file that must be read again has facts that never equal those of a new walk. `last` is the folder's
    record in the cache."""
    known: dict[Fact, Content] = {}
    text = last.leaves.hex()
    start = 0
    for fact, node in zip(_decode_facts(last.facts), _decode_nodes(last.nodes), strict=True):
        if isinstance(node, FolderNode) or _lacks_content(node):
            continue
        end = start + (64 * node.chunks if isinstance(node, FileNode) else 0)
        known[fact] = Content(node, text[start:end], fact)
        start = end
    return known


def _without_content(node: Node) -> Node:
    """Return a copy of a node (the entry of a file, link or folder in a snapshot) without the content of a small file
    or the target of a link, which otherwise stand in the node itself. An encrypted store's cache of the last snapshot
    holds such copies, because content must not lie unencrypted outside the store. The next snapshot reads these files
    and links again."""
    if isinstance(node, LinkNode):
        return msgspec.structs.replace(node, target=b"")
    return msgspec.structs.replace(node, inline=b"") if isinstance(node, FileNode) and node.inline else node


def _lacks_content(node: Node) -> bool:
    if isinstance(node, LinkNode):
        return not node.target
    return isinstance(node, FileNode) and node.size > 0 and node.extents is None and not (node.chunks or node.inline)
