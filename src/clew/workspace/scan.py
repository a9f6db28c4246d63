"""Walk over a workspace's folder: list what is there, and what is left out and why. Reads no file but `.clewignore`,
and follows no link."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from bisect import bisect_left as bisect
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from clew.errors import InvalidInput
from clew.workspace.folders import TEMPORARY
from clew.workspace.ignore import IGNORE_FILE, Rules, has_rules, read_rules
from clew.workspace.manifest import DEEPEST, EARLIEST, LATEST, LONGEST, Limits, Skipped, is_too_deep, shown

__all__ = ["CHANGED", "Fact", "Folder", "Root", "Scan", "scan", "why"]

Fact = tuple[bytes, int, int, int, int, int, bytes]
"""The facts about one name that show whether it has changed: name, mode with the kind of file, size, mtime and ctime in
nanoseconds, inode, and, for a file with several names (hard links), the path of the first one. For a folder, size,
ctime and inode are 0, because only its content counts. It is a tuple for speed: there is one for every name, and the
walk takes most of the time of a snapshot."""

CHANGED = "changed while it was read"
_IGNORE_FILE = IGNORE_FILE.encode()
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_SPECIAL = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}
_BY_FD = os.scandir in os.supports_fd and os.open in os.supports_dir_fd
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_LONGEST = 4000 if sys.platform == "linux" else 1000
"""The longest path in bytes that is given to the system in one piece. Linux takes 4,095 bytes, macOS 1,023."""
_AT_ONCE = 65_536
"""The most names of one folder that are read at a time. After each such batch, ignored names are dropped and the others
counted."""
_OURS = (stat.S_IFREG, stat.S_IFLNK)
"""The kinds of files that a restore creates under a temporary name: regular files and symbolic links."""


class Root:
    """The open root folder of a workspace. Its methods open files by their path from the root, however long."""

    def __init__(self, path: Path) -> None:
        self.path = os.path.realpath(path)
        try:
            self.facts = os.stat(self.path)
            self._fd = os.open(self.path, _FOLDER) if _BY_FD else -1
        except OSError as error:
            raise InvalidInput(f"the workspace {path} cannot be read: {why(error)}") from error
        if not stat.S_ISDIR(self.facts.st_mode):
            raise InvalidInput(f"the workspace {path} is not a folder")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def open(self, path: bytes, flags: int) -> int:
        """Open the file or folder at a path below the root, and return its descriptor. `flags` are as for `os.open`,
        and say whether the path itself may be a link. Links among the folders on the way are followed unless the path
        is very long. The caller has to compare the opened file with what the walk saw, because a folder on the way may
        have become a link meanwhile."""
        if not _BY_FD:
            return os.open(self.full(path), flags)
        return os.open(path, flags, dir_fd=self._fd) if len(path) < _LONGEST else self.open_strictly(path, flags)

    def open_strictly(self, path: bytes, flags: int) -> int:
        """Open a file or folder by its path in the workspace, one folder after the other, and return its descriptor. No
        folder on the way may be a link; `flags`, as for `os.open`, say whether the last name may be one. On a system
        such as Windows, which cannot open a path relative to an open folder, links among the folders are followed. This
        is slower than the method `open`. It is for paths that are too long for one call of the system, and for files
        that may have been replaced."""
        if not _BY_FD:
            return os.open(self.full(path), flags)
        with self._above(path) as (above, name):
            return os.open(name, flags, dir_fd=above)

    def read_link(self, path: bytes) -> tuple[bytes, os.stat_result]:
        """Return the target of a symbolic link, and the stat result of the link itself."""
        if not _BY_FD:
            return os.fsencode(os.readlink(self.full(path))), os.lstat(self.full(path))
        with self._above(path) as (above, name):
            return os.readlink(name, dir_fd=above), os.stat(name, dir_fd=above, follow_symlinks=False)

    def full(self, path: bytes) -> str:
        return os.path.join(self.path, os.fsdecode(path)) if path else self.path

    @contextlib.contextmanager
    def _above(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Open the folder that holds a path, for the time of the `with` block. Gives the folder's descriptor, and the
        last name of the path. Raises `OSError` if a folder on the way is a link."""
        *folders, name = path.split(b"/")
        fd = self._fd
        try:
            for folder in folders:
                below = os.open(folder, _FOLDER, dir_fd=fd)
                if fd != self._fd:
                    os.close(fd)
                fd = below
            yield fd, name
        finally:
            if fd != self._fd:
                os.close(fd)


class Folder:
    """A folder that a walk over the workspace found: its path, its ignore rules, facts such as the size of everything
    in it, and those folders in it that the walk enters."""

    __slots__ = ("above", "dev", "facts", "folders", "ino", "name", "path", "rules")

    def __init__(self, above: Folder | None, name: bytes, dev: int, ino: int) -> None:
        self.above = above
        self.name = name
        self.path = name if above is None else above.at(name)
        self.dev = dev
        self.ino = ino
        self.rules: Rules | None = None
        self.facts: list[Fact] = []
        """The facts of all names in the folder, sorted by name."""
        self.folders: list[Folder] = []
        """The folders in this folder that are part of the walk, sorted by name."""

    def at(self, name: bytes) -> bytes:
        """Return the path of the file or folder `name` in this folder, relative to the root of the workspace."""
        return self.path + b"/" + name if self.above is not None else name


class Scan:
    """The result of a walk over a workspace: the folders with their content, and what was left out."""

    def __init__(self) -> None:
        self.folders: list[Folder] = []
        """All folders that were read. The root comes first, and each folder before the folders in it."""
        self.skipped: list[Skipped] = []
        self.leftovers: list[bytes] = []
        """The paths, among those left out, that are temporary files of an interrupted restore."""
        self.links: dict[tuple[int, int], list[tuple[Folder, bytes]]] = {}
        """All names of each file that has several names (hard links) in the workspace. The keys are device and inode;
        the names are in the order of the walk, each with its folder."""

    def skip(self, path: bytes, reason: str) -> None:
        self.skipped.append(Skipped(shown(path), reason))


def scan(
    root: Root,
    limits: Limits,
    ignore: Sequence[str] = (),
    own: Collection[Path] = (),
    go_on: Callable[[], None] = lambda: None,
    *,
    links: bool = True,
) -> Scan:
    """Walk over the whole folder of a workspace and return what is there. Raises `InvalidInput` if it has more names
    than `limits.names`.

    `ignore` are patterns of names to leave out. `own` are Clew's own files and folders, which are left out too. `go_on`
    is called at every folder, and can end the walk by raising an error. With `links=False`, several names of one file
    (hard links) count as separate files.
    """
    walk = _Walk(root, limits, _Own(root, own))
    top = Folder(None, b"", root.facts.st_dev, root.facts.st_ino)
    top.rules = Rules.given(ignore)
    waiting = [top]
    while waiting:
        go_on()
        folder = waiting.pop()
        within = walk.read(folder)
        if within is not None:
            walk.found.folders.append(folder)
            if folder.above is not None:
                folder.above.folders.append(folder)
            waiting += reversed(within)
    if links:
        _join_links(walk.found)
    return walk.found


class _Own:
    """Recognises Clew's own files in the workspace, by path and by inode, because a file may be reached in several
    ways. Raises `InvalidInput` if the workspace lies inside one of Clew's own folders."""

    def __init__(self, root: Root, own: Collection[Path]) -> None:
        self.paths: set[bytes] = set()
        self.inodes: set[int] = set()
        self._keys: set[tuple[int, int]] = set()
        within = root.path.rstrip(os.sep) + os.sep
        for path in own:
            for place in {os.path.realpath(path), os.path.join(os.path.realpath(path.parent), path.name)}:
                if within.startswith(place.rstrip(os.sep) + os.sep):
                    raise InvalidInput(
                        f"the workspace {root.path} lies in {place}, where Clew keeps its own files. Choose another "
                        "folder for one of them."
                    )
                if place.startswith(within):
                    self.paths.add(os.fsencode(place[len(within) :].replace(os.sep, "/")))
            with contextlib.suppress(OSError):
                seen = os.stat(path)
                self.inodes.add(seen.st_ino)
                self._keys.add((seen.st_dev, seen.st_ino))

    def holds(self, path: bytes, seen: os.stat_result) -> bool:
        return path in self.paths or (seen.st_dev, seen.st_ino) in self._keys


class _Walk:
    """Reads the folders of a workspace one by one during a walk, and counts the names in them."""

    def __init__(self, root: Root, limits: Limits, own: _Own) -> None:
        self.found = Scan()
        self._root = root
        self._limits = limits
        self._own = own
        self._room = limits.names

    def read(self, folder: Folder) -> list[Folder] | None:
        """Read a folder's content into `folder`, and return the folders in it. Returns None, and notes the reason, if
        the folder is left out of the snapshot: it is too deep, cannot be read, or was replaced or removed meanwhile."""
        fd = -1
        if is_too_deep(folder.path):
            _drop(self.found, folder, f"deeper than {DEEPEST} folders, or its path is longer than {LONGEST} bytes")
            return None
        try:
            if _BY_FD:
                fd = self._root.open(folder.path or b".", _FOLDER)
                opened = os.fstat(fd)
                if (opened.st_dev, opened.st_ino) != (folder.dev, folder.ino):
                    _drop(self.found, folder, CHANGED)
                    return None
            folders, linked = self._list(folder, fd)
        except FileNotFoundError:
            _drop(self.found, folder, None)
            return None
        except OSError as error:
            _drop(self.found, folder, why(error))
            return None
        finally:
            if fd >= 0:
                os.close(fd)
        if folder.rules is not None:
            kept = {fact[0] for fact in folder.facts}
            folders = [below for below in folders if below.name in kept]
            linked = [link for link in linked if link[0] in kept]
        folders.sort(key=_name)
        for name, key in sorted(linked):
            self.found.links.setdefault(key, []).append((folder, name))
        return folders

    def _list(self, folder: Folder, fd: int) -> tuple[list[Folder], list[tuple[bytes, tuple[int, int]]]]:
        """List a folder's content into `folder`. Returns the folders in it, and the names of files that have several
        names (hard links), each with device and inode. Works in batches and drops ignored names after each, so that
        these, however many, do not count against `Limits.names`."""
        if folder.above is not None:
            folder.rules = folder.above.rules
        folders: list[Folder] = []
        linked: list[tuple[bytes, tuple[int, int]]] = []
        with os.scandir(fd if fd >= 0 else self._root.full(folder.path)) as entries:
            batch = list(islice(entries, _AT_ONCE))
            is_all = len(batch) < _AT_ONCE
            facts = self._look(folder, batch, folders, linked)
            self._read_rules(folder, facts, fd, is_all)
            folder.facts = self._kept(folder, facts)
            while not is_all and (batch := list(islice(entries, _AT_ONCE))):
                folder.facts += self._kept(folder, self._look(folder, batch, folders, linked))
        if not is_all:
            folder.facts.sort()
        return folders, linked

    def _look(
        self,
        folder: Folder,
        entries: list[os.DirEntry[str]],
        folders: list[Folder],
        linked: list[tuple[bytes, tuple[int, int]]],
    ) -> list[Fact]:
        """Return the facts (such as size and times) of these directory entries, sorted by name. Adds the folders among
        them to `folders`, and the files with several names (hard links) to `linked`. Most of the time of a snapshot is
        spent in this loop, so it looks at each name once and calls few functions."""
        found, own = self.found, self._own
        some_own, inodes = bool(own.paths), own.inodes
        largest = self._limits.file_bytes
        facts: list[Fact] = []
        for entry in entries:
            name = entry.name.encode(_ENCODING, _ERRORS)
            try:
                seen = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            mode = seen.st_mode
            kind = mode & 0o170000
            ino = seen.st_ino
            mtime = seen.st_mtime_ns
            if not EARLIEST <= mtime <= LATEST:
                if kind != stat.S_IFDIR:
                    found.skip(folder.at(name), "changed at a time that cannot be kept")
                    continue
                mtime = min(max(mtime, EARLIEST), LATEST)
            if (some_own or ino in inodes) and own.holds(folder.at(name), seen):
                found.skip(folder.at(name), "belongs to Clew's own store or cache")
            elif name.startswith(b".clew-") and kind in _OURS and TEMPORARY.fullmatch(name):
                found.skip(folder.at(name), "left over from a restore that was interrupted")
                found.leftovers.append(folder.at(name))
            elif kind == stat.S_IFREG:
                if seen.st_size > largest and _data(seen) > largest:
                    found.skip(folder.at(name), f"larger than the limit of {largest} bytes")
                    continue
                facts.append((name, mode, seen.st_size, mtime, seen.st_ctime_ns, ino, b""))
                if seen.st_nlink > 1:
                    linked.append((name, (seen.st_dev, ino)))
            elif kind == stat.S_IFDIR:
                facts.append((name, mode, 0, mtime, 0, 0, b""))
                folders.append(Folder(folder, name, seen.st_dev, ino))
            elif kind == stat.S_IFLNK:
                facts.append((name, mode, 0, mtime, seen.st_ctime_ns, ino, b""))
            else:
                found.skip(folder.at(name), _SPECIAL.get(kind, "neither a file, a folder nor a link"))
        facts.sort()
        return facts

    def _read_rules(self, folder: Folder, facts: list[Fact], fd: int, is_all: bool) -> None:
        """If the folder has a `.clewignore` of its own, add the patterns in it to `folder.rules`. `facts` are the
        facts, such as name and size, of what is in the folder; `.clewignore` is looked for among them. If `is_all` is
        False, `facts` covers only some of the names in the folder, so the disk is asked too."""
        at = bisect(facts, (_IGNORE_FILE,))
        is_there = at < len(facts) and facts[at][0] == _IGNORE_FILE
        if is_there or (not is_all and has_rules(self._root.full(folder.path), fd)):
            folder.rules = read_rules(folder.rules, self._root.full(folder.path), folder.path, fd)

    def _kept(self, folder: Folder, facts: list[Fact]) -> list[Fact]:
        """Return the facts (such as size and times) of those names in the folder that its ignore patterns do not match.
        Counts these names, and lists the ignored ones in the result of the walk as left out. Raises `InvalidInput` if
        the names counted so far in the workspace are more than `Limits.names`."""
        kept = facts
        if (rules := folder.rules) is not None:
            kept = []
            for fact in facts:
                if rules.ignore(folder.at(fact[0]), folder=stat.S_ISDIR(fact[1])):
                    self.found.skip(folder.at(fact[0]), "ignored")
                else:
                    kept.append(fact)
        self._room -= len(kept)
        if self._room < 0:
            raise InvalidInput(
                f"the workspace {self._root.path} holds more than {self._limits.names} names. Name what it should not "
                f"hold in {IGNORE_FILE} or with ignore=, or raise Limits.names."
            )
        return kept


def _name(folder: Folder) -> bytes:
    return folder.name


def _data(seen: os.stat_result) -> int:
    """Return an estimate of how many bytes of a file are data and not holes, without opening it."""
    blocks: int = getattr(seen, "st_blocks", seen.st_size)
    return min(seen.st_size, blocks * 512)


def _drop(found: Scan, folder: Folder, reason: str | None) -> None:
    """Leave a folder that could not be read out of the result `found` of a walk: remove its facts (such as name and
    time) from the folder above it. Unless `reason` is None, report the folder as left out for this reason. Raises
    `InvalidInput` if it is the root."""
    if folder.above is None:
        raise InvalidInput(f"the workspace cannot be read: {reason or 'it is gone'}")
    if reason is not None:
        found.skip(folder.path, reason)
    facts = folder.above.facts
    at = bisect(facts, (folder.name,))
    if at < len(facts) and facts[at][0] == folder.name:
        del facts[at]


def _join_links(found: Scan) -> None:
    """Note for each file with several names (hard links) that these are one file: write the path of its first name into
    the facts (tuples with name, size, times and so on) that the walk over the workspace noted for all its names."""
    found.links = {key: names for key, names in found.links.items() if len(names) > 1}
    firsts: dict[Folder, dict[bytes, bytes]] = {}
    for names in found.links.values():
        first = names[0][0].at(names[0][1])
        for folder, name in names:
            firsts.setdefault(folder, {})[name] = first
    for folder, first_of in firsts.items():
        folder.facts = [(*fact[:6], first_of.get(fact[0], b"")) for fact in folder.facts]


def why(error: OSError) -> str:
    """Return the reason for an error of the operating system in a few words."""
    return (error.strerror or type(error).__name__).lower()
