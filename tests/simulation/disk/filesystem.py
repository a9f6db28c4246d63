"""A file system in memory, on a disk with a cache. A power cut keeps of the unsynced changes what chance decides.

Bytes and length of a file are safe once it is synced, a name once its folder is synced. Of all else any part may be there
or not: names in any order, bytes sector by sector, with zeros in the place of sectors that are lost. Two things have an
order: the writes to one sector, and what comes before and after a file is made shorter.

A sync that fails leaves its writes in the cache as if they had been written, as Linux does: no later sync writes them again.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from random import Random

from tests.crash.disk import SECTOR, Everything, Node, Nothing, Some, Survival, Write

__all__ = ["FileSystem", "Inode", "Open", "failure"]

FREE = 10**9
"""Bytes of free room that the disk says it has."""


def failure(code: int, path: object = None) -> OSError:
    """Return the error of the operating system with this number."""
    return OSError(code, os.strerror(code), *([] if path is None else [str(path)]))


class Inode(Node):
    """A file or folder. `content` is what processes see of a file, `modified` its time of modification."""

    def __init__(self, number: int, *, folder: bool, now: int) -> None:
        super().__init__(folder)
        self.number = number
        self.content = bytearray()
        self.modified = self.changed = now
        self.safe_modified = now

    def write(self, offset: int, data: bytes, now: int) -> None:
        end = offset + len(data)
        self.content.extend(bytes(max(0, end - len(self.content))))
        self.content[offset:end] = data
        self._drop_failed(offset, end)
        self.pending.append((True, Write(offset, data)))
        self.modified = self.changed = now

    def truncate(self, size: int, now: int) -> None:
        del self.content[size:]
        self.content.extend(bytes(max(0, size - len(self.content))))
        self._drop_failed(size, 2**63)
        self.pending.append((True, Write(size, None)))
        self.modified = self.changed = now

    def sync(self) -> None:
        self.settle(self.covered())
        self.safe_modified = self.modified

    def fail_to_sync(self) -> None:
        """Mark what the failed sync should have written: no later sync writes it."""
        self.pending = [
            (done and not (isinstance(change, Write) and change.data is not None), change)
            for done, change in self.pending
        ]

    def survivor(self, dice: Random, *, in_order: bool) -> bytes:
        """Return what a power cut leaves of the file: what is safe, and of the rest what chance decides. With `in_order`,
        the sectors that are left are the first ones."""
        changes = [change for _, change in self.pending if isinstance(change, Write)]
        cuts = [place for place, change in enumerate(changes) if change.data is None]
        kept = dice.randint(0, len(cuts))
        last = cuts[kept - 1] + 1 if kept else 0
        data = bytearray(self.data)
        for change in changes[:last]:  # what was cut off later does not matter
            _apply(data, change)
        pieces = [
            piece for change in changes[last : cuts[kept] if kept < len(cuts) else None] for piece in change.pieces()
        ]
        sectors = [offset // SECTOR for offset, _ in pieces]
        limit = dice.choice([*sectors, 2**60]) if in_order else 2**60
        left = {
            sector: 0 if sector > limit else dice.randint(0, sectors.count(sector)) for sector in dict.fromkeys(sectors)
        }
        for offset, piece in pieces:
            sector = offset // SECTOR
            if (sector < limit and in_order) or left[sector] > 0:
                _apply(data, Write(offset, piece))
            left[sector] -= 1
        end = max([len(data), *(offset + len(piece) for offset, piece in pieces)])
        data.extend(bytes(dice.choice((0, end - len(data), dice.randint(0, end - len(data))))))
        return bytes(data)

    def _drop_failed(self, start: int, end: int) -> None:
        """Forget writes that a sync failed to write and that are written over or cut off now."""
        self.pending = [
            (done, change)
            for done, change in self.pending
            if done
            or not isinstance(change, Write)
            or change.offset >= end
            or change.offset + len(change.data or b"") <= start
        ]


class _Some(Some):
    """Any part of the names and bytes that were not synced."""

    def content(self, node: Node) -> bytes:
        assert isinstance(node, Inode)
        return node.survivor(self._dice, in_order=self._in_order)


def _apply(data: bytearray, change: Write) -> None:
    end = change.offset + len(change.data or b"")
    data.extend(bytes(max(0, end - len(data))))
    if change.data is None:
        del data[change.offset :]
    else:
        data[change.offset : end] = change.data


class Open:
    """An open file of a process: where it reads and writes next, and the lock that it holds."""

    def __init__(self, inode: Inode, path: str) -> None:
        self.inode = inode
        self.path = path
        self.place = 0
        self.lock: str = ""


class FileSystem:
    """Folders and files under `root`. Knows nothing of processes; `now` is a time in nanoseconds since 1970."""

    def __init__(self) -> None:
        self._numbers = itertools.count(100)
        self.root = self._new(folder=True, now=0)

    def find(self, path: str) -> Inode | None:
        """Return what has this path, or None. Paths are relative to the root, "" is the root itself."""
        node: Node | None = self.root
        for part in path.split("/") if path else ():
            if node is not None and not node.folder:
                raise failure(errno.ENOTDIR, path)
            node = node.now.get(part) if node is not None else None
        assert node is None or isinstance(node, Inode)
        return node

    def get(self, path: str) -> Inode:
        """Return what has this path. Raises `FileNotFoundError` if there is nothing."""
        found = self.find(path)
        if found is None:
            raise failure(errno.ENOENT, path)
        return found

    def make(self, path: str, *, folder: bool, now: int) -> Inode:
        parent, name = self._parent(path)
        if name in parent.now:
            raise failure(errno.EEXIST, path)
        made = self._new(folder=folder, now=now)
        parent.rename({name: made})
        parent.modified = now
        return made

    def remove(self, path: str, now: int) -> None:
        parent, name = self._parent(path)
        found = self.get(path)
        found.changed = now
        parent.rename({name: None})

    def rename(self, source: str, target: str, now: int) -> None:
        (parent, old), (other, new) = self._parent(source), self._parent(target)
        assert parent is other, "the model does not know moves between folders"
        found = self.get(source)
        found.changed = now
        parent.rename({old: None, new: found})

    def cut_power(self, dice: Random, survival: Survival | None = None) -> str:
        """Lose the cache: the disk has what was synced, and of the rest what chance decides, or `survival`. Returns how
        much that is."""
        survival = survival or dice.choice(
            [
                Nothing(),
                Everything(),
                _Some(dice, in_order=True),
                _Some(dice, in_order=False),
                _Some(dice, in_order=False),
            ]
        )
        self.root = self._survivor(self.root, survival, dice, {})
        return survival.name

    def _survivor(self, node: Node, survival: Survival, dice: Random, made: dict[int, Inode]) -> Inode:
        assert isinstance(node, Inode)
        if node.number in made:
            return made[node.number]
        modified = dice.choice((node.modified, node.safe_modified))
        found = made[node.number] = Inode(node.number, folder=node.folder, now=modified)
        found.changed = node.changed
        if node.folder:
            for name, child in survival.names(node).items():
                found.names[name] = self._survivor(child, survival, dice, made)
            found.now = dict(found.names)
        else:
            found.data = bytearray(survival.content(node))
            found.content = bytearray(found.data)
        return found

    def _new(self, *, folder: bool, now: int) -> Inode:
        return Inode(next(self._numbers), folder=folder, now=now)

    def _parent(self, path: str) -> tuple[Inode, str]:
        folder, _, name = path.rpartition("/")
        return self.get(folder), name


def facts_of(inode: Inode) -> os.stat_result:
    """Return what `os.stat` says of a file or folder."""
    mode = stat.S_IFDIR | 0o700 if inode.folder else stat.S_IFREG | 0o600
    seconds = inode.modified // 10**9, inode.changed // 10**9
    return os.stat_result(
        (mode, inode.number, 1, 1, os.geteuid(), 0, len(inode.content), seconds[0], *seconds),
        {
            "st_mtime": inode.modified / 1e9,
            "st_ctime": inode.changed / 1e9,
            "st_mtime_ns": inode.modified,
            "st_ctime_ns": inode.changed,
        },
    )
