"""Compare two snapshots and show what differs, with unified diffs of text files. Folders with the same digest in both
are not read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from clew._runtime.telemetry import span
from clew.checkpointers import Checkpointer
from clew.workspace.folders import join
from clew.workspace.manifest import FileNode, FolderNode, Limits, LinkNode, Node, shown, unpack_folder
from clew.workspace.reader import (
    Bounds,
    Item,
    Ref,
    Root,
    fetch,
    items,
    read_file,
    read_root,
    read_tree,
    same_content,
)

if TYPE_CHECKING:
    from clew.workspace.workspace import Workspace

__all__ = ["Change", "Difference", "as_lines", "compare", "diff", "unified"]

_BATCH = 128
"""The most folders that are fetched from the two snapshots and compared at once."""
_LONGEST_TEXT = 2**20

Kind = Literal["added", "changed", "deleted", "renamed", "mode"]
What = Literal["file", "folder", "link"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One path that differs between two snapshots. A path of which only the modification time differs is not a change."""

    kind: Kind
    """The kind of change. `mode`: only the permissions differ. `renamed`: a file with the same content is at another
    path."""
    path: str
    old_path: str | None = None
    """The former path of a renamed file."""
    what: What
    """Whether the path is a file, a folder or a link. For a deleted path, which of these it was."""
    mode: int | None = None
    old_mode: int | None = None
    size: int | None = None
    """The size of a file in bytes. None for folders and links."""
    old_size: int | None = None
    text: str | None = None
    """A unified diff, if the caller asked for it and both versions of the file are UTF-8 text of up to 1 MiB. Otherwise
    None."""


class Difference(msgspec.Struct, frozen=True):
    """All changes between two snapshots, sorted by path. As a truth value it is False if nothing differs."""

    changes: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes)

    def text(self) -> str:
        """Return all changes as one text. A change that has a unified diff is shown by it, any other by one line that
        describes the change."""
        return "".join(change.text or _summary(change) for change in self.changes)


def _summary(change: Change) -> str:
    was = f"{change.old_path} -> " if change.old_path is not None else ""
    modes = f" {change.old_mode:04o} -> {change.mode:04o}" if change.kind == "mode" else ""
    return f"{change.kind} {change.what}: {was}{change.path}{modes}\n"


class _Side(NamedTuple):
    """One of the two snapshots that are compared. `root` is its root folder. `found` has the file, folder or link that
    this snapshot has at each path that differs."""

    root: Root
    found: dict[bytes, Item]


class _Found(NamedTuple):
    """A path that differs, before it is turned into a public `Change`. `was` is the file, folder or link that the old
    snapshot has there, `item` the one that the new snapshot has. Each is None if there is none. `old_path` is the
    former path of a renamed file, else empty."""

    kind: Kind
    path: bytes
    was: Item | None
    item: Item | None
    old_path: bytes = b""


async def diff(workspace: Workspace, a: Ref | None = None, b: Ref | None = None, text: bool = False) -> Difference:
    """Return what changed from snapshot `a` to snapshot `b`. None stands for the workspace's folder as it is now: a
    snapshot of it is taken first. With `text=True`, changes of text files come with a unified diff."""
    now = await workspace.snapshot() if a is None or b is None else ""
    old, new = now if a is None else a, now if b is None else b
    return await compare(workspace.checkpointer, old, new, text=text, limits=workspace.limits)


async def compare(
    checkpointer: Checkpointer, a: Ref | None, b: Ref | None, *, text: bool = False, limits: Limits | None = None
) -> Difference:
    """Return what changed from snapshot `a` to snapshot `b`, without a workspace folder. None stands for an empty
    snapshot, so that a thread's first snapshot can be shown as a change too. With `text=True`, changes of text files
    come with a unified diff. Raises `InvalidInput` if a snapshot has more names than `limits` allows."""
    limits = limits or Limits()
    with span("clew.diff") as current:
        was = None if a is None else await read_root(checkpointer, a, limits)
        now = None if b is None else await read_root(checkpointer, b, limits)
        old, new = _Side(was or _nothing(now), {}), _Side(now or _nothing(was), {})
        await _Comparison(checkpointer, limits, old, new).run()
        found = _with_renames(list(_classified(old.found, new.found)))
        changes = [_change(one, await _text(checkpointer, one) if text else None) for one in found]
        current.set(changes=len(changes))
    return Difference(tuple(changes))


def _nothing(beside: Root | None) -> Root:
    """Return the root folder of an empty snapshot. It has the mode and time of `beside`, the root folder of the other
    snapshot, so that the root itself is not a change."""
    return Root(FolderNode(b"", 0o700, 0) if beside is None else beside.node, "")


class _Comparison:
    """Finds all paths that differ between the snapshots `old` and `new`. For each such path, `run` puts what the old
    snapshot has there into `old.found`, and what the new snapshot has there into `new.found`."""

    def __init__(self, checkpointer: Checkpointer, limits: Limits, old: _Side, new: _Side) -> None:
        self._checkpointer = checkpointer
        self._limits = limits
        self._old = old
        self._new = new
        self._bounds = Bounds(limits), Bounds(limits)
        self._pairs: list[tuple[bytes, str, str]] = []
        """Folders still to compare. Each has its path, and the digests of the blobs that list its content in the old
        and in the new snapshot. A digest is empty if that snapshot does not have the folder."""

    async def run(self) -> None:
        if self._old.root.node.mode != self._new.root.node.mode:
            self._old.found[b""] = Item(self._old.root.node)
            self._new.found[b""] = Item(self._new.root.node)
        self._pairs = [(b"", self._old.root.tree, self._new.root.tree)]
        while self._pairs:
            pairs = self._pairs[:_BATCH]
            del self._pairs[:_BATCH]
            wanted = {digest for _, *trees in pairs for digest in trees if digest}
            await asyncio.to_thread(self._compare, pairs, await fetch(self._checkpointer, wanted))
        for side in (self._old, self._new):
            await self._fill_in_names(side)

    def _compare(self, pairs: list[tuple[bytes, str, str]], packed: dict[str, bytes]) -> None:
        for path, *trees in pairs:
            old, new = (self._items(tree, packed) for tree in trees)
            for bounds, side in zip(self._bounds, (old, new), strict=True):
                bounds.count(path, len(side))
            for name in old.keys() | new.keys():
                self._compare_name(join(path, name), old.get(name), new.get(name))

    def _items(self, tree: str, packed: dict[str, bytes]) -> dict[bytes, Item]:
        if not tree:
            return {}
        return items(unpack_folder(tree, packed[tree], self._checkpointer.keys, self._limits.names))

    def _compare_name(self, path: bytes, old: Item | None, new: Item | None) -> None:
        if old == new:
            return
        if old is not None:
            self._old.found[path] = old
        if new is not None:
            self._new.found[path] = new
        trees = old.tree if old else "", new.tree if new else ""
        if trees[0] != trees[1]:
            self._pairs.append((path, *trees))

    async def _fill_in_names(self, side: _Side) -> None:
        """Complete the records of one snapshot in the comparison. A file with several names (hard links) has its
        content recorded at its first name only; this copies that record to its other names."""
        for path, item in list(side.found.items()):
            node = item.node
            if isinstance(node, FileNode) and node.same_as not in (b"", path):
                first = side.found.get(node.same_as) or await self._find(side.root, node.same_as)
                if first is not None and isinstance(first.node, FileNode):
                    content = msgspec.structs.replace(first.node, name=node.name, same_as=node.same_as)
                    side.found[path] = Item(content, "", first.leaves)

    async def _find(self, root: Root, path: bytes) -> Item | None:
        """Return the file, folder or link that a snapshot has at a path, or None if there is nothing. `root` is the
        snapshot's root folder."""
        item: Item | None = Item(root.node, root.tree)
        for name in path.split(b"/"):
            if item is None or not item.tree:
                return None
            item = items(await read_tree(self._checkpointer, item.tree, self._limits)).get(name)
        return item


def _classified(old: dict[bytes, Item], new: dict[bytes, Item]) -> Iterator[_Found]:
    for path in sorted(old.keys() | new.keys()):
        was, item = old.get(path), new.get(path)
        if was is not None and item is not None:
            kind = _kind(was, item)
            if kind is not None:
                yield _Found(kind, path, was, item)
            elif isinstance(was.node, FolderNode) != isinstance(item.node, FolderNode):
                yield _Found("deleted", path, was, None)
                yield _Found("added", path, None, item)
        else:
            yield _Found("added" if was is None else "deleted", path, was, item)


def _kind(was: Item, item: Item) -> Kind | None:
    """Return how one path changed: `changed` for other content, or `mode` if only the permissions differ. `was` is what
    the old snapshot has at the path, `item` what the new one has. Returns None if neither applies. Also returns None if
    a folder became a file or link, or the reverse: the caller reports that. What is inside two folders is not compared
    here."""
    a, b = was.node, item.node
    if isinstance(a, FolderNode) or isinstance(b, FolderNode):
        return "mode" if type(a) is type(b) and a.mode != b.mode else None
    if isinstance(a, LinkNode) and isinstance(b, LinkNode):
        return "changed" if a.target != b.target else None
    if not same_content(was, item):
        return "changed"
    return "mode" if a.mode != b.mode else None


def _with_renames(found: list[_Found]) -> list[_Found]:
    """Replace each pair of a deleted and an added file with the same content by one rename. If several deleted files
    have that content, take one that has the same file name as the added file, or else the first."""
    gone: dict[object, list[_Found]] = {}
    for one in found:
        if one.kind == "deleted" and one.was is not None and (key := _content(one.was)):
            gone.setdefault(key, []).append(one)
    renamed: dict[bytes, _Found] = {}
    for one in found:
        if one.kind != "added" or one.item is None or not (left := gone.get(_content(one.item))):
            continue
        name = one.path.rpartition(b"/")[2]
        old = next((other for other in left if other.path.rpartition(b"/")[2] == name), left[0])
        left.remove(old)
        renamed[old.path] = _Found("renamed", one.path, old.was, one.item, old.path)
    taken = {one.path for one in renamed.values()}
    kept = [
        one
        for one in found
        if not (one.kind == "deleted" and one.path in renamed) and not (one.kind == "added" and one.path in taken)
    ]
    return sorted([*kept, *renamed.values()], key=lambda one: one.path)


def _content(item: Item) -> object:
    """Return a value by which the contents of files are compared: two files with equal content have equal values.
    Returns None for an empty file, a folder or a link."""
    node = item.node
    if not isinstance(node, FileNode) or not node.size:
        return None
    return node.size, item.leaves, node.inline, node.extents


def _change(found: _Found, text: str | None) -> Change:
    old = found.was.node if found.was is not None else None
    new = found.item.node if found.item is not None else None
    return Change(
        kind=found.kind,
        path=shown(found.path),
        old_path=shown(found.old_path) if found.old_path else None,
        what=_what(new if new is not None else old),
        mode=new.mode if new is not None else None,
        old_mode=old.mode if old is not None else None,
        size=new.size if isinstance(new, FileNode) else None,
        old_size=old.size if isinstance(old, FileNode) else None,
        text=text,
    )


def _what(node: Node | None) -> What:
    return "folder" if isinstance(node, FolderNode) else "link" if isinstance(node, LinkNode) else "file"


async def _text(checkpointer: Checkpointer, found: _Found) -> str | None:
    if found.kind not in ("added", "changed", "deleted"):
        return None
    old, new = await _lines(checkpointer, found.path, found.was), await _lines(checkpointer, found.path, found.item)
    if old is None or new is None:
        return None
    path = shown(found.path)
    names = "/dev/null" if found.was is None else f"a/{path}", "/dev/null" if found.item is None else f"b/{path}"
    return await asyncio.to_thread(unified, old, new, *names)


async def _lines(checkpointer: Checkpointer, path: bytes, item: Item | None) -> list[str] | None:
    """Return the lines of a file of a snapshot, or None if `item` is not a text file or has more than 1 MiB. If `item`
    is None, the snapshot does not have the file: returns an empty list."""
    if item is None:
        return []
    if (
        not isinstance(item.node, FileNode)
        or item.node.size > _LONGEST_TEXT
        or len(item.leaves) > _LONGEST_TEXT // 1024
    ):
        return None
    return as_lines(await read_file(checkpointer, path, item))


_CONTEXT = 3
_MOST_LINES = 10_000
"""The most lines, between the first and the last difference of two texts, that are matched line by line. More could
take minutes, so they are shown as replaced as a whole."""
_NO_END = "\\ No newline at end of file\n"

Opcode = tuple[str, int, int, int, int]


def as_lines(data: bytes) -> list[str] | None:
    """Split UTF-8 data into lines, each with its line end. Returns None if the data is not UTF-8 text."""
    if b"\0" in data:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def unified(old: Sequence[str], new: Sequence[str], old_name: str, new_name: str) -> str:
    """Return a unified diff from the old lines to the new lines. The two names go into its header; they are `a/path`
    and `b/path`, or `/dev/null` for a file that does not exist."""
    parts = [f"--- {old_name}\n+++ {new_name}\n"]
    for group in _grouped(_opcodes(old, new)):
        first, last = group[0], group[-1]
        parts.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n")
        for kind, a, b, c, d in group:
            if kind == "equal":
                parts += [_line(" ", line) for line in old[a:b]]
                continue
            parts += [_line("-", line) for line in old[a:b]]
            parts += [_line("+", line) for line in new[c:d]]
    return "".join(parts)


def _line(sign: str, line: str) -> str:
    return sign + line if line.endswith("\n") else f"{sign}{line}\n{_NO_END}"


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _opcodes(old: Sequence[str], new: Sequence[str]) -> list[Opcode]:
    """Return the steps that turn the old lines into the new lines, in the form of `SequenceMatcher.get_opcodes`.
    `SequenceMatcher` is slow. So it is given only the lines from the first difference to the last."""
    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    same = next((i for i in range(shorter - start) if old[-1 - i] != new[-1 - i]), shorter - start)
    old_middle, new_middle = old[start : len(old) - same], new[start : len(new) - same]
    if max(len(old_middle), len(new_middle)) > _MOST_LINES:
        middle = [("replace", 0, len(old_middle), 0, len(new_middle))]
    else:
        middle = list(SequenceMatcher(None, old_middle, new_middle).get_opcodes())
    return [
        ("equal", 0, start, 0, start),
        *((kind, a + start, b + start, c + start, d + start) for kind, a, b, c, d in middle),
        ("equal", len(old) - same, len(old), len(new) - same, len(new)),
    ]


def _grouped(opcodes: list[Opcode]) -> Iterator[list[Opcode]]:
    """Group the steps of a diff into hunks. Each hunk has up to three equal lines before and after its differences.
    Differences with at most six equal lines between them share a hunk."""
    group: list[Opcode] = []
    for number, (kind, a, b, c, d) in enumerate(opcodes):
        if kind != "equal":
            group.append((kind, a, b, c, d))
            continue
        if number > 0 and group:
            if number < len(opcodes) - 1 and b - a <= 2 * _CONTEXT:
                group.append((kind, a, b, c, d))
                continue
            group.append((kind, a, min(b, a + _CONTEXT), c, min(d, c + _CONTEXT)))
            yield group
            group = []
        if number < len(opcodes) - 1:
            group.append((kind, max(a, b - _CONTEXT), b, max(c, d - _CONTEXT), d))
    if any(opcode[0] != "equal" for opcode in group):
        yield group
