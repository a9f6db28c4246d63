"""Plan a restore: compare the snapshot of a folder as it is now with the snapshot to restore (the target), and list the
work that makes the folder equal to the target.

Folders with the same digest in both are not read. Making a plan does not look at the disk; `check_plan` compares the
plan with the folder.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from clew.checkpointers import Checkpointer
from clew.errors import Corrupt, InvalidInput, Unavailable, UsageError
from clew.workspace.folders import TEMPORARY, Folders, explained, join, split
from clew.workspace.manifest import FileNode, FolderNode, Limits, LinkNode, Node, shown, unpack_folder
from clew.workspace.reader import Bounds, Item, Root, check_length, data_size, fetch, items, same_content

__all__ = ["FileWork", "LinkWork", "NameWork", "RestorePlan", "TouchWork", "check_plan", "make_plan"]

_BATCH = 128
"""The most folders that are fetched from the two snapshots and compared at once."""
_SMALL_CHUNK = 4096
"""A size in bytes far below that of any chunk (part of a file) that Clew makes. A file whose chunks are smaller than
this on average is refused as damaged."""


class FileWork(NamedTuple):
    """A file that a restore has to write. `node` is the file as the snapshot to restore lists it, and `item` is `node`
    together with the digests of the blobs that hold the file's content. `was` is the file or link that is at the path
    now, or None if nothing is."""

    path: bytes
    node: FileNode
    item: Item
    was: Node | None
    size: int
    """The size in bytes of the file's data, without the holes of a sparse file."""


class LinkWork(NamedTuple):
    """A symbolic link that a restore has to make. `was` is the file or link that is at the path now, or None if nothing
    is."""

    path: bytes
    node: LinkNode
    was: Node | None


class NameWork(NamedTuple):
    """A hard link that a restore has to make: `path` becomes a further name of the file at the path `first`. `was` is
    the file or link that is at `path` now, or None if nothing is."""

    path: bytes
    first: bytes
    was: Node | None


class TouchWork(NamedTuple):
    """A file or link of which a restore has to set only the mode or the time, because nothing else differs. `was` is
    its present state, `item` the state to restore."""

    path: bytes
    item: Item
    was: Node
    folder: FolderNode
    """The folder that holds the file or link, with the mode and time to restore. They are needed if the file has to be
    written anew after all, which changes the time of the folder."""


class RestorePlan:
    """All the work of one restore, in the order in which it was found: a folder comes before its content."""

    def __init__(self) -> None:
        self.removals: list[tuple[bytes, Node]] = []
        self.new_folders: list[bytes] = []
        self.files: list[FileWork] = []
        self.names: list[NameWork] = []
        self.links: list[LinkWork] = []
        self.touches: list[TouchWork] = []
        self.settled: dict[bytes, FolderNode] = {}
        """Folders whose mode and time are set at the end of the restore, because they differ or because work in the
        folder changes them. The keys are paths."""
        self.added: list[bytes] = []
        """Paths that the restore creates in folders that exist already. The restore is refused if something is at such
        a path."""
        self.leftovers: Collection[bytes] = ()
        """Paths of temporary files that an interrupted restore left, to be removed."""
        self.emptied: dict[bytes, Collection[bytes]] = {}
        """Paths of folders that a file or link replaces, each with the names that the last snapshot saw in it. The
        restore is refused if such a folder holds any other name."""

    @property
    def made(self) -> int:
        """The number of files, symbolic links, hard links and folders that the restore makes or replaces."""
        return len(self.new_folders) + len(self.files) + len(self.names) + len(self.links)

    @property
    def data(self) -> int:
        """The number of bytes of file data that the restore writes."""
        return sum(work.size for work in self.files)

    @property
    def freed(self) -> int:
        """The number of bytes of data in the files that the restore removes or replaces."""
        gone = (*(node for _, node in self.removals), *(work.was for work in self.files))
        return sum(data_size(node) for node in gone if isinstance(node, FileNode))


class _Pair(NamedTuple):
    """One folder in the two snapshots that a restore compares: the snapshot of the folder as it is now, and the
    snapshot to restore. The folder may be missing in one of them."""

    path: bytes
    before: str
    """The digest of the folder's content before the restore. Empty if the folder does not exist now."""
    target: str
    """The digest of the folder's content after the restore. Empty if the restore removes the folder."""
    node: FolderNode
    """The folder's mode and time after the restore; if the restore removes it, those before."""
    replaced: bool = False
    """Whether the restore puts a file or link in this folder's place."""


async def make_plan(
    checkpointer: Checkpointer, before: Root | None, target: Root, limits: Limits, *, setuid: bool = False
) -> RestorePlan:
    """Return the plan that makes a folder equal to the snapshot `target`. `before` is the snapshot of the folder as it
    is now, or None if it is empty. Without `setuid`, no file gets a setuid or setgid bit that it does not have now.
    Raises `InvalidInput` or `Corrupt` if the target is hostile, damaged or over the limits."""
    return await _Planner(checkpointer, limits, setuid).run(before, target)


_POWERS = stat.S_ISUID | stat.S_ISGID
"""The bits of a mode by which a program runs as the owner or the group of its file, no matter who starts it. A hostile
snapshot that is restored by root could make a program that gives everybody root's rights."""


class _Planner:
    """Makes the plan of one restore: the list of work that makes a folder equal to a snapshot. `run` compares, folder
    by folder, the snapshot of the folder as it is now with the snapshot to restore, and returns the plan. It changes
    nothing in the folder."""

    def __init__(self, checkpointer: Checkpointer, limits: Limits, setuid: bool) -> None:
        self._checkpointer = checkpointer
        self._limits = limits
        self._setuid = setuid
        self._plan = RestorePlan()
        self._pairs: list[_Pair] = []
        self._equal: list[_Pair] = []
        self._count = Bounds(limits).count
        self._firsts: set[bytes] = set()
        """The first names of all files with several names (hard links) that were found so far, as paths."""
        self._rewritten: set[bytes] = set()
        """The first names of files with several names (hard links) that are written anew, as paths. The other names of
        these files have to be made again."""
        self._followers: list[tuple[NameWork, _Pair]] = []
        """Further names (hard links) of files, each with the folder that it is in. These names need no work, unless
        their file is written anew."""

    async def run(self, before: Root | None, target: Root) -> RestorePlan:
        top = self._without_powers(Item(target.node), Item(before.node) if before is not None else None).node
        if isinstance(top, FolderNode):
            target = target._replace(node=top)
        if before is None or before.node != target.node:
            self._plan.settled[b""] = target.node
        if before is not None and before.tree == target.tree:
            return self._plan
        self._pairs.append(_Pair(b"", before.tree if before else "", target.tree, target.node))
        await self._drain(self._compare)
        if self._rewritten or any(work.first not in self._firsts for work in self._plan.names):
            self._pairs = self._equal
            await self._drain(self._look_for_names)
        self._add_names()
        return self._plan

    async def _drain(self, step: Callable[[list[_Pair], dict[str, bytes]], None]) -> None:
        while self._pairs:
            pairs = self._pairs[:_BATCH]
            del self._pairs[:_BATCH]
            wanted = {digest for pair in pairs for digest in (pair.before, pair.target) if digest}
            await asyncio.to_thread(step, pairs, await fetch(self._checkpointer, wanted))

    def _items(self, digest: str, packed: dict[str, bytes]) -> dict[bytes, Item]:
        if not digest:
            return {}
        return items(unpack_folder(digest, packed[digest], self._checkpointer.keys, self._limits.names))

    def _compare(self, pairs: list[_Pair], packed: dict[str, bytes]) -> None:
        for pair in pairs:
            before, target = self._items(pair.before, packed), self._items(pair.target, packed)
            if pair.replaced:
                self._plan.emptied[pair.path] = before.keys()
            if pair.target:
                self._count(pair.path, len(target))
            work = self._plan.made + len(self._plan.removals)
            for name, item in target.items():
                _check_name(pair.path, item.node)
                was = before.get(name)
                self._compare_name(pair, join(pair.path, name), self._without_powers(item, was), was)
            for name in sorted(before.keys() - target.keys()):
                self._remove(join(pair.path, name), before[name], pair.replaced)
            if pair.target and work != self._plan.made + len(self._plan.removals):
                self._plan.settled[pair.path] = pair.node

    def _without_powers(self, item: Item, was: Item | None) -> Item:
        """Return a file or folder of the snapshot to restore without its setuid and setgid bits. `was` is what is at
        its path now. A bit stays if `was` has it too and is also a folder, or a file with the same content. All bits
        stay if the restore was started with `setuid=True`."""
        powers = item.node.mode & _POWERS
        if self._setuid or not powers or isinstance(item.node, LinkNode):
            return item
        stays = was is not None and type(was.node) is type(item.node)
        if was is not None and stays and (isinstance(item.node, FolderNode) or same_content(item, was)):
            powers &= ~was.node.mode
        return item._replace(node=msgspec.structs.replace(item.node, mode=item.node.mode & ~powers))

    def _compare_name(self, pair: _Pair, path: bytes, item: Item, was: Item | None) -> None:
        node = item.node
        if was is not None and isinstance(was.node, FolderNode) and not isinstance(node, FolderNode):
            self._remove(path, was, replaced=True)
            was = None
        elif was is None and pair.before:
            self._plan.added.append(path)
        if isinstance(node, FolderNode):
            self._compare_folder(path, node, item.tree, was)
        elif isinstance(node, LinkNode):
            self._compare_link(pair, path, item, node, was)
        else:
            self._compare_file(pair, path, item, node, was)

    def _compare_folder(self, path: bytes, node: FolderNode, tree: str, was: Item | None) -> None:
        if was is not None and isinstance(was.node, FolderNode):
            if was.node != node:
                self._plan.settled[path] = node
            pair = _Pair(path, was.tree, tree, node)
            (self._pairs if was.tree != tree else self._equal).append(pair)
            return
        if was is not None:
            self._remove(path, was)
        self._plan.new_folders.append(path)
        self._plan.settled[path] = node
        self._pairs.append(_Pair(path, "", tree, node))

    def _compare_link(self, pair: _Pair, path: bytes, item: Item, node: LinkNode, was: Item | None) -> None:
        if was is None or not isinstance(was.node, LinkNode) or was.node.target != node.target:
            self._plan.links.append(LinkWork(path, node, was.node if was else None))
        elif was.node.mtime != node.mtime:
            self._plan.touches.append(TouchWork(path, item, was.node, pair.node))

    def _compare_file(self, pair: _Pair, path: bytes, item: Item, node: FileNode, was: Item | None) -> None:
        """Add the work for one file to the plan. `item` and `node` are the file as the snapshot to restore lists it,
        `was` is what is at its path now, and `pair` is its folder. A file with several names (hard links) is written
        anew and never changed in place, because one of its names may have to keep the old content."""
        old = was.node if was is not None and isinstance(was.node, FileNode) else None
        if node.same_as not in (b"", path):
            work = NameWork(path, node.same_as, was.node if was else None)
            if old is not None and old.same_as == node.same_as:
                self._followers.append((work, pair))
            else:
                self._plan.names.append(work)
            return
        _check_file(path, node, self._limits)
        if node.same_as:
            self._firsts.add(path)
        if was is not None and old is not None and old.same_as in (b"", path) and same_content(item, was):
            if (old.mode, old.mtime) == (node.mode, node.mtime):
                return
            if not old.same_as and not node.same_as:
                self._plan.touches.append(TouchWork(path, item, old, pair.node))
                return
        self._plan.files.append(FileWork(path, node, item, was.node if was else None, data_size(node)))
        if node.same_as:
            self._rewritten.add(path)

    def _remove(self, path: bytes, was: Item, replaced: bool = False) -> None:
        self._plan.removals.append((path, was.node))
        if isinstance(was.node, FolderNode):
            self._pairs.append(_Pair(path, was.tree, "", was.node, replaced))

    def _look_for_names(self, pairs: list[_Pair], packed: dict[str, bytes]) -> None:
        """Find the files with several names (hard links) in the folders of `pairs`, which are the same now as in the
        snapshot to restore. Remembers the first name and the further names of each. If the restore writes such a file
        anew under its first name, its further names in these folders have to be made again. `packed` has the blobs that
        list the folders, by digest."""
        for pair in pairs:
            found = self._items(pair.target, packed)
            self._count(pair.path, len(found))
            for name, item in found.items():
                path = join(pair.path, name)
                if isinstance(item.node, FolderNode):
                    self._pairs.append(_Pair(path, "", item.tree, item.node))
                elif isinstance(item.node, FileNode) and item.node.same_as == path:
                    self._firsts.add(path)
                elif isinstance(item.node, FileNode) and item.node.same_as:
                    self._followers.append((NameWork(path, item.node.same_as, item.node), pair))

    def _add_names(self) -> None:
        for work, pair in self._followers:
            if work.first in self._rewritten:
                self._plan.names.append(work)
                self._plan.settled[pair.path] = pair.node
        for work in self._plan.names:
            if work.first not in self._firsts:
                raise InvalidInput(
                    f"{shown(work.path)!r} is to be another name of {shown(work.first)!r}, which is not the first name of "
                    "a file in the snapshot. The snapshot is hostile or damaged."
                )


def _check_name(folder: bytes, node: Node) -> None:
    if node.name.startswith(b".clew-") and not isinstance(node, FolderNode) and TEMPORARY.fullmatch(node.name):
        raise InvalidInput(
            f"{shown(join(folder, node.name))!r} is a name that no snapshot may hold. The snapshot is hostile."
        )


def _check_file(path: bytes, node: FileNode, limits: Limits) -> None:
    if not node.chunks:
        check_length(path, node, len(node.inline))
    elif node.chunks > data_size(node) // _SMALL_CHUNK + 1:
        raise Corrupt(
            f"{shown(path)!r} has {node.chunks} chunks for {data_size(node)} bytes of data. Restore another snapshot."
        )
    if data_size(node) > limits.file_bytes:
        raise InvalidInput(
            f"{shown(path)!r} has {data_size(node)} bytes, the limit is {limits.file_bytes}. If the snapshot is your own, "
            "raise the limit: Limits(file_bytes=…)."
        )


def check_plan(root: int, plan: RestorePlan, own_files: Collection[bytes], skipped: Mapping[str, str]) -> None:
    """Check a plan against the folder that is open as `root`. Raises an error if something in the folder prevents the
    restore, or if the disk has too little space.

    `own_files` are the paths of the store's own files, from the root. `skipped` gives the reason for each path that the
    last snapshot left out. If a file has several names on the disk (hard links), setting its mode or time in place
    would change it under all of them, even outside the workspace. So the plan is changed to write such a file anew.
    """
    _check_lengths(root, plan)
    leftovers = set(plan.leftovers)
    folders = Folders(root)
    try:
        for added in plan.added:
            if added in own_files or _exists(folders, added):
                raise _in_the_way(added, skipped)
        for folder, known in plan.emptied.items():
            for name in _names(folders, folder):
                if name not in known and join(folder, name) not in leftovers:
                    raise _in_the_way(join(folder, name), skipped)
        _spare_shared_files(folders, plan)
    finally:
        folders.close()
    _check_room(root, plan)


def _check_lengths(root: int, plan: RestorePlan) -> None:
    longest = os.fpathconf(root, "PC_NAME_MAX")
    paths = chain(plan.new_folders, _paths(plan.files), _paths(plan.links), _paths(plan.names))
    for path in paths:
        if len(path) > longest and len(split(path)[1]) > longest:
            raise InvalidInput(f"{shown(path)!r} has a name that is too long here. Restore into another folder.")


def _paths(work: Sequence[FileWork] | Sequence[LinkWork] | Sequence[NameWork]) -> Iterator[bytes]:
    return (one.path for one in work)


def _exists(folders: Folders, path: bytes) -> bool:
    folder, name = split(path)
    with explained(path):
        fd = folders.at(folder)
        try:
            os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
    return True


def _names(folders: Folders, path: bytes) -> list[bytes]:
    with explained(path):
        return [os.fsencode(name) for name in os.listdir(folders.at(path))]


def _in_the_way(path: bytes, skipped: Mapping[str, str]) -> UsageError:
    reason = next((f" ({skipped[shown(part)]})" for part in _upwards(path) if shown(part) in skipped), "")
    return UsageError(
        f"{shown(path)!r} is in the way: it is in no snapshot{reason}, so it would be lost. Nothing was changed. "
        "Move it away, or restore into another folder."
    )


def _upwards(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _spare_shared_files(folders: Folders, plan: RestorePlan) -> None:
    """Change the plan of a restore for files that were to get only a new mode and time, but have other names on the
    disk too (hard links). Each is written anew, as a file of its own, so that the other names keep the old mode and
    time."""
    touches = []
    for work in plan.touches:
        folder, name = split(work.path)
        with explained(work.path):
            facts = os.stat(name, dir_fd=folders.at(folder), follow_symlinks=False)
        if facts.st_nlink == 1:
            touches.append(work)
            continue
        plan.settled[folder] = work.folder
        if isinstance(work.item.node, LinkNode):
            plan.links.append(LinkWork(work.path, work.item.node, work.was))
        elif isinstance(work.item.node, FileNode):
            size = data_size(work.item.node)
            plan.files.append(FileWork(work.path, work.item.node, work.item, work.was, size))
    plan.touches = touches


def _check_room(root: int, plan: RestorePlan) -> None:
    """Raise `Unavailable` if the disk has too little free space for the files that the plan of a restore writes. The
    data of files that the plan removes or replaces counts as free space, but how much removing them really frees is not
    known exactly."""
    facts = os.fstatvfs(root)
    needed, free = plan.data - plan.freed, facts.f_bavail * facts.f_frsize
    if needed > free:
        raise Unavailable(
            f"this needs {needed} bytes of disk space, and {free} are free. Nothing was changed. Free some space."
        )
