"""Read snapshots from a store: their folders, the bytes of their files, and listings of their content. Everything is
checked when it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from clew.checkpointers import Checkpointer
from clew.errors import Corrupt, InvalidInput, MissingBlob
from clew.log import WorkspaceSnapshot
from clew.log.blobs import unpack_blob
from clew.log.keys import Keyring
from clew.workspace.folders import join
from clew.workspace.manifest import (
    DEEPEST,
    LONGEST,
    FileNode,
    FolderNode,
    Limits,
    LinkNode,
    Node,
    SnapshotRef,
    Tree,
    is_too_deep,
    shown,
    unpack_folder,
)

__all__ = [
    "Bounds",
    "Item",
    "Listed",
    "Places",
    "Ref",
    "Root",
    "check_length",
    "data_size",
    "digest_of",
    "fetch",
    "items",
    "list_snapshot",
    "read_file",
    "read_root",
    "read_tree",
    "same_content",
    "unpack_file",
]


Ref = SnapshotRef | WorkspaceSnapshot | str
"""A reference to a snapshot: the result of `Workspace.snapshot`, the entry in a thread's log, or the snapshot's digest.
"""


class Bounds:
    """Counts the names of one snapshot while it is read. Raises an error if there are more than the limit, or if a
    folder is too deep.

    A hostile snapshot can have very many names with few blobs, because one blob can be the content of many folders. So
    the names of every snapshot that may come from elsewhere are counted.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._names = 0

    def count(self, folder: bytes, names: int) -> None:
        """Count the `names` names that the snapshot has in the folder with the path `folder`. Raises `InvalidInput` if
        this and all earlier calls have counted more names than the limit, or if the folder is too deep."""
        self._names += names
        if self._names > self._limits.names:
            raise InvalidInput(
                f"the snapshot has more than {self._limits.names} names. If it is your own, raise Limits.names."
            )
        if is_too_deep(folder):
            raise InvalidInput(
                f"{shown(folder[:80])!r}… goes deeper than {DEEPEST} folders or {LONGEST} bytes. The snapshot is hostile."
            )


class Item(NamedTuple):
    """A file, link or folder in a snapshot, with the digests of the blobs that hold its content."""

    node: Node
    tree: str = ""
    """The digest of the blob that lists a folder's content. Empty for files and links."""
    leaves: tuple[str, ...] = ()
    """The digests of the blobs that hold a file's content, in order. Empty for folders, links and very small files."""


class Root(NamedTuple):
    """The root folder of a snapshot: its mode and time in `node`, and the digest of the blob that lists its content in
    `tree`."""

    node: FolderNode
    tree: str


def digest_of(ref: Ref) -> str:
    """Return the digest of a snapshot. `ref` is the result of taking the snapshot, the entry of a log that names it, or
    the digest itself. Raises `InvalidInput` for anything else. That includes None, which callers have if a thread has
    no snapshot."""
    if isinstance(ref, str):
        return ref
    if not isinstance(ref, SnapshotRef | WorkspaceSnapshot):
        raise InvalidInput(
            "there is no snapshot to read: the thread has none, or had none at this turn. Take one with "
            "Workspace.snapshot() and append its entry() to the thread."
            if ref is None
            else f"{ref!r} is not a snapshot. Give the result of snapshot(), the entry in a log, or a digest."
        )
    return ref.digest


async def read_root(checkpointer: Checkpointer, ref: Ref, limits: Limits) -> Root:
    """Read the root folder of a snapshot and return it. Raises `MissingBlob` if the store does not have the snapshot,
    and `Corrupt` if it is damaged. Raises `InvalidInput` if the snapshot was made to do harm or has more names than
    `limits` allows, or if `ref` is the digest of a folder within a snapshot."""
    digest = digest_of(ref)
    top = await read_tree(checkpointer, digest, limits)
    if len(top.nodes) != 1 or not isinstance(top.nodes[0], FolderNode):
        raise InvalidInput(f"{digest} is a folder within a snapshot, not a snapshot of a workspace")
    return Root(top.nodes[0], top.trees[0])


async def read_tree(checkpointer: Checkpointer, digest: str, limits: Limits) -> Tree:
    """Read the content of one folder of a snapshot. Raises `MissingBlob` if the store does not have it, and `Corrupt`
    if it is damaged. Raises `InvalidInput` if it is not a folder, was made to do harm, or has more names than the
    limits allow."""
    packed = await fetch(checkpointer, [digest])
    return await asyncio.to_thread(unpack_folder, digest, packed[digest], checkpointer.keys, limits.names)


async def fetch(checkpointer: Checkpointer, digests: Collection[str]) -> dict[str, bytes]:
    """Fetch these blobs from the store. Returns their bytes by digest, as stored: not yet decompressed or decrypted.
    Raises `MissingBlob` unless the store has all of them."""
    wanted = set(digests)
    found = await checkpointer.get_blobs(wanted) if wanted else {}
    if len(found) < len(wanted):
        raise MissingBlob(wanted - found.keys())
    return found


def items(tree: Tree) -> dict[bytes, Item]:
    """Return the files, folders and links in a folder by name, each with the digests of the blobs that hold its
    content."""
    found: dict[bytes, Item] = {}
    folders = chunks = 0
    for node in tree.nodes:
        if isinstance(node, FolderNode):
            found[node.name] = Item(node, tree.trees[folders])
            folders += 1
        elif isinstance(node, FileNode) and node.chunks:
            found[node.name] = Item(node, "", tree.leaves[chunks : chunks + node.chunks])
            chunks += node.chunks
        else:
            found[node.name] = Item(node)
    return found


def data_size(node: FileNode) -> int:
    """Return the size of a file in bytes, without the holes of a sparse file."""
    return node.size if node.extents is None else sum(length for _, length in node.extents)


def same_content(a: Item, b: Item) -> bool:
    """Return whether both items, each a file, folder or link of a snapshot, are files with the same content. Names,
    modes and times do not count."""
    if not isinstance(a.node, FileNode) or not isinstance(b.node, FileNode):
        return False
    return (
        a.node.size == b.node.size
        and a.leaves == b.leaves
        and a.node.inline == b.node.inline
        and a.node.extents == b.node.extents
    )


def unpack_file(path: bytes, item: Item, packed: Mapping[str, bytes], keys: Keyring | None) -> list[bytes]:
    """Return the data of a file as a list of pieces, without the holes of a sparse file (ranges of zeros that are not
    stored). `packed` has the blobs of the file by digest, as stored: not yet decompressed or decrypted. `keys` are the
    encryption keys of the store, None if it has none. Raises `Corrupt` if the data does not have the length that the
    file's folder says. `path` names the file in the error."""
    node = item.node
    assert isinstance(node, FileNode)  # noqa: S101 - for the type alone
    pieces = [unpack_blob(digest, packed[digest], keys) for digest in item.leaves] if item.leaves else [node.inline]
    check_length(path, node, sum(map(len, pieces)))
    return pieces


def check_length(path: bytes, node: FileNode, length: int) -> None:
    """Raise `Corrupt` unless as much data is stored for the file at `path` as `node`, its description in the snapshot,
    says. `length` is the number of bytes stored."""
    if length != data_size(node):
        raise Corrupt(
            f"{shown(path)!r} should have {data_size(node)} bytes of data by its folder, but {length} are stored. "
            "Restore another snapshot."
        )


async def read_file(checkpointer: Checkpointer, path: bytes, item: Item) -> bytes:
    """Read a whole file from the store and return its bytes, with zeros for the holes of a sparse file. Use it only for
    files that are known to be small."""
    packed = await fetch(checkpointer, item.leaves)
    pieces = await asyncio.to_thread(unpack_file, path, item, packed, checkpointer.keys)
    assert isinstance(item.node, FileNode)  # noqa: S101 - for the type alone
    if item.node.extents is None:
        return b"".join(pieces)
    whole = bytearray(item.node.size)
    places = Places(item.node.extents)
    for piece in pieces:
        for offset, part in places.take(piece):
            whole[offset : offset + len(part)] = part
    return bytes(whole)


class Places:
    """Finds the offsets in a sparse file (a file with holes) at which its data belongs. `extents` are the parts of the
    file that hold data, as offsets and lengths. Pass the data to `take` in pieces of any size, in order: it yields each
    part of a piece with its offset."""

    def __init__(self, extents: Iterable[tuple[int, int]]) -> None:
        self._extents = iter(extents)
        self._offset = self._room = 0

    def take(self, piece: bytes) -> Iterator[tuple[int, memoryview]]:
        """Take the next piece of a sparse file's data, and yield it as pairs of an offset in the file and the bytes
        that belong there. There are several pairs if the piece goes on after a hole, a stretch of the file that is not
        stored. Raises `Corrupt` if there is more data than the file has room for."""
        left = memoryview(piece)
        while left:
            if not self._room:
                self._offset, self._room = next(self._extents, (0, 0))
                if not self._room:
                    raise Corrupt("a sparse file has more data than it has room for. Restore another snapshot.")
            part, left = left[: self._room], left[self._room :]
            yield self._offset, part
            self._offset += len(part)
            self._room -= len(part)


# Listings

_BATCH = 128
"""The most folders that are fetched at once."""
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A file, folder or link in a snapshot, with its path and what the snapshot says about it."""

    path: str
    """The path from the root of the workspace. It is always printable: other bytes are shown as escapes."""
    what: Literal["file", "folder", "link"]
    mode: int
    modified_at: datetime
    size: int | None = None
    """The size of a file in bytes. None for folders and links."""
    target: str | None = None
    """The target of a link. None for files and folders."""


async def list_snapshot(checkpointer: Checkpointer, ref: Ref, limits: Limits | None = None) -> list[Listed]:
    """Return all files, folders and links in a snapshot, sorted by path. A folder comes before its content. Raises
    `InvalidInput` if there are more than `limits` allows."""
    limits = limits or Limits()
    root = await read_root(checkpointer, ref, limits)
    bounds = Bounds(limits)
    found: dict[bytes, Item] = {}
    folders = [(b"", root.tree)]
    while folders:
        batch, folders = folders[:_BATCH], folders[_BATCH:]
        packed = await fetch(checkpointer, {tree for _, tree in batch})
        for path, tree in batch:
            inside = items(await asyncio.to_thread(unpack_folder, tree, packed[tree], checkpointer.keys, limits.names))
            bounds.count(path, len(inside))
            for name, item in inside.items():
                found[join(path, name)] = item
                if item.tree:
                    folders.append((join(path, name), item.tree))
    return [_listed(path, found[path], found) for path in sorted(found, key=lambda path: path.split(b"/"))]


def _listed(path: bytes, item: Item, found: dict[bytes, Item]) -> Listed:
    node = item.node
    size = None
    if isinstance(node, FileNode):
        first = found.get(node.same_as, item).node  # only the first name of a file has its size
        size = first.size if isinstance(first, FileNode) else node.size
    return Listed(
        path=shown(path),
        what="folder" if isinstance(node, FolderNode) else "link" if isinstance(node, LinkNode) else "file",
        mode=node.mode,
        modified_at=_moment(node.mtime),
        size=size,
        target=shown(node.target) if isinstance(node, LinkNode) else None,
    )


def _moment(nanoseconds: int) -> datetime:
    """Return a time in nanoseconds since 1970 as a `datetime`. If a `datetime` cannot hold it, return the start of 1970
    for a time before 1970, and the last day of 9999 for any other."""
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        return _FIRST if nanoseconds < 0 else _LAST
