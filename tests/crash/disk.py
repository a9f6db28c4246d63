"""A model of a disk with a volatile cache: what a power cut may leave of the writes that were not synced.

As strict as POSIX allows. The bytes and the length of a file are safe once a sync of it is done that began after they
were written. A name (made, moved or removed) is safe once a sync of its folder is done, and not with the file's. Of all
else any part may be there or not, in any order, torn between sectors of 512 bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.crash.strace import Call, Event

__all__ = ["Disk", "Everything", "Nothing", "Some", "Survival"]

SECTOR = 512


class Write(NamedTuple):
    """Bytes written to a file; or with none, its new length."""

    offset: int
    data: bytes | None

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """The parts of it that no tear divides."""
        data = self.data or b""
        start = 0
        while start < len(data):
            stop = min(len(data), (self.offset + start) // SECTOR * SECTOR + SECTOR - self.offset)
            yield self.offset + start, data[start:stop]
            start = stop


class Rename(NamedTuple):
    """Names of one folder that changed together: each now means this file, or nothing."""

    names: dict[str, Node | None]


class Node:
    """A file or a folder: what is safe, and what has been asked for since, in order."""

    def __init__(self, folder: bool) -> None:
        self.folder = folder
        self.data = bytearray()
        self.names: dict[str, Node] = {}
        self.now: dict[str, Node] = {}
        """The names as the running system sees them."""
        self.pending: list[tuple[bool, Write | Rename]] = []
        """Each with whether its call is done, so that a sync that starts now covers it."""

    def rename(self, names: dict[str, Node | None]) -> None:
        _rename(self.now, names)
        self.pending.append((True, Rename(names)))

    def covered(self) -> list[Write | Rename]:
        return [change for done, change in self.pending if done]

    def length(self) -> int:
        """The bytes of the file as the running system sees it."""
        length = len(self.data)
        for _, change in self.pending:
            if isinstance(change, Write):
                length = change.offset if change.data is None else max(length, change.offset + len(change.data))
        return length

    def settle(self, changes: list[Write | Rename]) -> None:
        """These are on the disk now."""
        for change in changes:
            if isinstance(change, Rename):
                _rename(self.names, change.names)
            elif change.data is None:
                _resize(self.data, change.offset)
            else:
                _place(self.data, change.offset, change.data)
        settled = {id(change) for change in changes}
        self.pending = [(done, change) for done, change in self.pending if id(change) not in settled]


class Survival:
    """Which of the unsynced changes outlive a power cut. This one: none of them."""

    name = "nothing unsynced"

    def names(self, node: Node) -> dict[str, Node]:
        return dict(node.names)

    def content(self, node: Node) -> bytes:
        return bytes(node.data)


class Nothing(Survival):
    """Whatever was not synced is gone."""


class Everything(Survival):
    """The cache was written just in time."""

    name = "everything"

    def names(self, node: Node) -> dict[str, Node]:
        return dict(node.now)

    def content(self, node: Node) -> bytes:
        data = bytearray(node.data)
        for _, change in node.pending:
            if isinstance(change, Write):
                _place(data, change.offset, change.data) if change.data is not None else _resize(data, change.offset)
        return bytes(data)


class Some(Survival):
    """Any part may be there.

    With `in_order` a file that grows does so from its old end on: of a write that makes it longer there is a first part,
    or nothing but zeros. Without, there are any sectors of it, with zeros for the others.
    """

    def __init__(self, dice: random.Random, *, in_order: bool) -> None:
        self._dice = dice
        self._in_order = in_order
        self.name = "some in order" if in_order else "some in any order"

    def names(self, node: Node) -> dict[str, Node]:
        found = dict(node.names)
        for _, change in node.pending:
            if isinstance(change, Rename) and self._dice.random() < 0.5:
                _rename(found, change.names)
        return found

    def content(self, node: Node) -> bytes:
        data = bytearray(node.data)
        for _, change in node.pending:
            if isinstance(change, Write):
                fate = self._dice.choice(["gone", "whole", "torn", "torn"])
                if fate != "gone":
                    self._apply(data, change, torn=fate == "torn")
        return bytes(data)

    def _apply(self, data: bytearray, change: Write, *, torn: bool) -> None:
        if change.data is None:
            _resize(data, change.offset)
            return
        pieces = list(change.pieces())
        if torn:
            inside = [piece for piece in pieces if piece[0] + len(piece[1]) <= len(data)]
            beyond = pieces[len(inside) :]
            kept = [piece for piece in inside if self._dice.random() < 0.5]
            if self._in_order:
                pieces = kept + beyond[: self._dice.randint(0, len(beyond))]
                if not pieces and self._dice.random() < 0.5:
                    _resize(data, max(len(data), self._dice.randint(change.offset, change.offset + len(change.data))))
            else:
                pieces = kept + [piece for piece in beyond if self._dice.random() < 0.5]
                if self._dice.random() < 0.5:
                    _resize(data, max(len(data), change.offset + len(change.data)))
        for offset, piece in pieces:
            _place(data, offset, piece)


def _rename(names: dict[str, Node], changes: dict[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


def _place(data: bytearray, offset: int, piece: bytes) -> None:
    if len(data) < offset:
        _resize(data, offset)
    data[offset : offset + len(piece)] = piece


class _Open(NamedTuple):
    """What a file descriptor stands for."""

    path: str
    node: Node


class Disk:
    """The folder at `root`, followed through the calls of one process. It is there from the start, and safe, with a copy
    of what is in the folder `start`."""

    def __init__(self, root: Path, start: Path) -> None:
        self._prefix = f"{root}/"
        self.root = _load(start)
        self._open: dict[int, _Open] = {}
        self._position: dict[int, int] = {}
        self._begun: dict[int, tuple[Node, list[Write | Rename]]] = {}
        """Calls that have started: what they write, or what a sync covers."""
        self.written: list[Node] = []
        """The nodes written to, in order; the caller clears it."""

    def image(self, survival: Survival, to: Path) -> None:
        """What is found after a power cut now."""
        _build(self.root, survival, to)

    def node(self, path: Path) -> Node | None:
        """What this path means to the running system."""
        return self._find(str(path))

    def is_safe(self, path: Path) -> bool:
        """Whether this name, and those of the folders above it, outlive a power cut."""
        node = self._safe(path)
        return node is not None and node is self.node(path)

    def is_gone(self, path: Path) -> bool:
        """Whether there is no such name, and none comes back after a power cut."""
        return self.node(path) is None and self._safe(path) is None

    def _safe(self, path: Path) -> Node | None:
        node: Node | None = self.root
        for part in str(path).removeprefix(self._prefix).split("/"):
            node = node.names.get(part) if node is not None else None
        return node

    def paths(self) -> dict[str, Node]:
        """All files as the running system sees them."""
        return dict(_walk(self.root, self._prefix))

    def apply(self, event: Event) -> None:
        call = event.call
        if call.name in _STARTS and event.result is None:
            self._start(call)
        elif call.name == "close" and event.result is None:  # from here on another thread may get this number
            self._open.pop(call.number(0), None)
        elif event.result is not None:
            begun = self._begun.pop(id(call), None)
            if begun is not None:
                self._finish(call, event.result, *begun)
            elif event.result >= 0 or call.name in _STARTS:
                self._done(call, event.result)

    def concerns(self, call: Call) -> bool:
        """Whether the call names something on this disk, by path or by an open descriptor."""
        if call.strings and call.name not in ("write", "pwrite64"):
            return any(f"{text.decode()}/".startswith(self._prefix) for text in call.strings)
        return call.name in _STARTS and call.number(0) in self._open

    def _start(self, call: Call) -> None:
        """Bytes may be on the disk as soon as a write starts; a sync covers what was done before it started."""
        opened = self._open.get(call.number(0))
        if opened is None:
            return
        node = opened.node
        if call.name in ("fsync", "fdatasync"):
            self._begun[id(call)] = node, node.covered()
            return
        assert call.name in ("write", "pwrite64", "ftruncate", "fallocate"), f"the model does not know {call.name}"
        if call.name == "ftruncate":
            change = Write(call.number(1), None)
        elif call.name == "fallocate":
            assert call.number(1) == 0, "the model knows only the fallocate that makes a file longer"
            change = Write(max(node.length(), call.number(2) + call.number(3)), None)
        else:
            offset = call.number(-1) if call.name == "pwrite64" else self._position[call.number(0)]
            change = Write(offset, call.strings[0])
        node.pending.append((False, change))
        self._begun[id(call)] = node, [change]

    def _finish(self, call: Call, result: int, node: Node, changes: list[Write | Rename]) -> None:
        if call.name in ("fsync", "fdatasync"):
            if result == 0:
                node.settle(changes)
            return
        place = next(place for place, (_, change) in enumerate(node.pending) if change is changes[0])
        change = changes[0]
        assert isinstance(change, Write)
        if result < 0:
            del node.pending[place]
            return
        if change.data is not None:
            change = Write(change.offset, change.data[:result])
        node.pending[place] = True, change
        self.written.append(node)
        if call.name == "write":
            self._position[call.number(0)] += result

    def _done(self, call: Call, result: int) -> None:
        name = call.name
        if name in ("open", "openat", "creat"):
            self._opened(call, call.strings[0].decode(), result)
        elif name in ("lseek", "read") and call.number(0) in self._open:
            fd = call.number(0)
            self._position[fd] = result if name == "lseek" else self._position[fd] + result
        elif name == "mmap":
            opened = self._open.get(call.number(4))
            shared = "MAP_SHARED" in call.arguments and "PROT_WRITE" in call.arguments
            assert opened is None or not shared or opened.path.endswith("-shm"), (
                f"{opened} is written through a mapping"
            )
        elif name in ("mkdir", "mkdirat"):
            self._name({call.strings[0].decode(): Node(folder=True)})
        elif name in ("unlink", "unlinkat", "rmdir"):
            self._name({call.strings[0].decode(): None})
        elif name in ("rename", "renameat", "renameat2"):
            source, target = (text.decode() for text in call.strings)
            if source.startswith(self._prefix):
                self._name({source: None, target: self._find(source)})
        elif name in ("link", "linkat"):
            source, target = (text.decode() for text in call.strings)
            if source.startswith(self._prefix):
                self._name({target: self._find(source)})
        elif name in ("clone", "clone3", "fork", "vfork"):
            assert "CLONE_FILES" in call.arguments, "the model follows one process"
        elif name not in ("fcntl", "close", *_STARTS):
            touched = any(text.startswith(self._prefix.encode()) for text in call.strings)
            fds = {number for number in call.arguments.split(", ") if number.isdigit() and int(number) in self._open}
            assert not touched, f"the model does not know {name}"
            assert not (fds and name.startswith(("dup", "copy", "send", "splice", "fallocate", "readv", "preadv"))), (
                name
            )
        elif name == "fcntl" and "F_DUPFD" in call.arguments:
            assert call.number(0) not in self._open, "the model does not know copies of descriptors"

    def _opened(self, call: Call, path: str, fd: int) -> None:
        self._open.pop(fd, None)
        if not path.startswith(self._prefix) and f"{path}/" != self._prefix:
            return
        assert "O_APPEND" not in call.arguments
        assert "O_SYNC" not in call.arguments
        assert "O_DSYNC" not in call.arguments
        node = self._find(path)
        if node is None:
            assert "O_CREAT" in call.arguments, f"{path} was opened and never made"
            node = Node(folder=False)
            self._name({path: node})
        elif "O_TRUNC" in call.arguments:
            node.pending.append((True, Write(0, None)))
        self._open[fd] = _Open(path, node)
        self._position[fd] = 0

    def _name(self, paths: dict[str, Node | None]) -> None:
        changes: dict[str, Node | None] = {}
        folders = set()
        for path, node in paths.items():
            if not path.startswith(self._prefix):
                return
            folder, _, name = path.rpartition("/")
            folders.add(folder)
            changes[name] = node
        assert len(folders) == 1, "the model does not know moves between folders"
        parent = self._find(folders.pop())
        assert parent is not None
        parent.rename(changes)

    def _find(self, path: str) -> Node | None:
        node: Node | None = self.root
        if f"{path}/" != self._prefix:
            for part in path.removeprefix(self._prefix).split("/"):
                node = node.now.get(part) if node is not None else None
        return node


_STARTS = {
    "write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fallocate", "fsync", "fdatasync", "sync_file_range",
}  # fmt: skip


def _walk(folder: Node, prefix: str) -> Iterator[tuple[str, Node]]:
    for name, node in folder.now.items():
        if node.folder:
            yield from _walk(node, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", node


def _load(path: Path) -> Node:
    node = Node(folder=path.is_dir())
    if node.folder:
        node.names = {entry.name: _load(entry) for entry in path.iterdir()}
        node.now = dict(node.names)
    else:
        node.data = bytearray(path.read_bytes())
    return node


def _build(folder: Node, survival: Survival, to: Path) -> None:
    to.mkdir(mode=0o700, exist_ok=True)
    for name, node in survival.names(folder).items():
        if node.folder:
            _build(node, survival, to / name)
        elif not name.endswith("-shm"):  # SQLite builds it anew from the WAL
            (to / name).write_bytes(survival.content(node))
            (to / name).chmod(0o600)
