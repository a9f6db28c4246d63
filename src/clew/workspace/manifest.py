"""What a folder held, as blobs: one tree a folder, whose value says what is in it. Pure: nothing is fetched or stored here.

docs/format.md describes the value byte by byte. What a tree says is checked as it is read: whoever wrote it may be hostile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from clew.errors import Corrupt, InvalidInput
from clew.log import WorkspaceSnapshot
from clew.log.blobs import is_tree, pack_tree, tree_refs, unpack_blob
from clew.log.keys import Keyring
from clew.threads.reader import Progress

__all__ = [
    "DEEPEST",
    "EARLIEST",
    "INLINE",
    "LATEST",
    "LONGEST",
    "MAX_NODES",
    "FileNode",
    "FolderNode",
    "Limits",
    "LinkNode",
    "Node",
    "Progress",
    "Skipped",
    "SnapshotRef",
    "Tree",
    "is_too_deep",
    "pack_folder",
    "shown",
    "unpack_folder",
]


INLINE = 512
"""Files up to this size are kept in the tree itself: a chunk of its own would cost more than it holds."""
MAX_NODES = 500_000
"""The most names in one folder that are read; more are refused, unless a caller asks for more."""


EARLIEST, LATEST = -(2**63) + 1, 2**64 - 1
"""The times that a node can have, in nanoseconds since 1970: from 1677 to 2554."""


class _Node(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One name in a folder. Encoded as an array, its kind first; new fields come last and have defaults."""

    name: bytes
    mode: int
    """Permission bits, set-user-id and the like included."""
    mtime: int
    """Nanoseconds since 1970."""


class FileNode(_Node, tag="file", frozen=True):
    """A regular file: its bytes are `inline`, or the next `chunks` leaves of the tree, one after the other."""

    size: int = 0
    chunks: int = 0
    inline: bytes = b""
    extents: tuple[tuple[int, int], ...] | None = None
    """For a sparse file, where its data lies: offset and length, in order. All else reads as zeros. None: no holes."""
    same_as: bytes = b""
    """For one of several names of one file (hard links), the path of the first of them from the root; else empty. The
    first of them has its own path here."""


class FolderNode(_Node, tag="folder", frozen=True):
    """A folder within: the next of the trees that this tree points at."""


class LinkNode(_Node, tag="link", frozen=True):
    """A symbolic link. Where it leads is kept and never followed."""

    target: bytes = b""


Node = FileNode | FolderNode | LinkNode


class Tree(msgspec.Struct, frozen=True):
    """One folder: what is in it, sorted by name, with the blobs that this takes."""

    nodes: tuple[Node, ...] = ()
    trees: tuple[str, ...] = ()
    """Digest of each `FolderNode`, in order."""
    leaves: tuple[str, ...] = ()
    """Digests of the chunks of all files, in order."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Node, ...]).decode


def pack_folder(tree: Tree, keys: Keyring | None = None) -> tuple[str, bytes]:
    """The digest and the bytes of a folder's blob. The same folder gives the same blob."""
    return pack_tree(_encode(tree.nodes), tree.trees, tree.leaves, keys)


def unpack_folder(digest: str, packed: bytes, keys: Keyring | None = None, most: int = MAX_NODES) -> Tree:
    """The inverse of `pack_folder`. What is no folder, or one that nothing may be restored from, is an error."""
    if not is_tree(packed):
        raise InvalidInput(f"blob {digest} is no folder: it is not a snapshot of a workspace")
    body = unpack_blob(digest, packed, keys)
    if (count := _array_length(body)) > most:
        raise InvalidInput(
            f"folder {digest} says it has {count} names; at most {most} are restored. If it is your own, raise the limit."
        )
    try:
        nodes = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"folder {digest} cannot be read: {error}. Restore it from a copy.") from error
    trees, leaves = tree_refs(packed)
    _check(digest, nodes, trees, leaves)
    return Tree(nodes, tuple(trees), tuple(leaves))


def _array_length(body: bytes) -> int:
    """How many nodes are said to follow, read from the first bytes alone."""
    first = body[0] if body else 0
    if first == 0xDD:
        return int.from_bytes(body[1:5], "big")
    return int.from_bytes(body[1:3], "big") if first == 0xDC else first & 0x0F


def _check(digest: str, nodes: Sequence[Node], trees: Sequence[str], leaves: Sequence[str]) -> None:
    """Refuse what would be written anywhere but in the folder, and what does not add up."""
    folders = chunks = 0
    before = b""
    for node in nodes:
        name = node.name
        if name <= before or name in (b".", b"..") or b"/" in name or b"\0" in name:
            raise InvalidInput(
                f"folder {digest} names {name!r}, which is no name of its own in a folder. It is hostile."
            )
        before = name
        if not 0 <= node.mode <= 0o7777 or not EARLIEST <= node.mtime <= LATEST:
            raise InvalidInput(f"folder {digest}: {name!r} has an impossible mode or time")
        if isinstance(node, FolderNode):
            folders += 1
        elif isinstance(node, LinkNode):
            if not node.target or b"\0" in node.target:
                raise InvalidInput(f"folder {digest}: the link {name!r} leads nowhere")
        else:
            chunks += node.chunks
            _check_file(digest, node)
    if folders != len(trees) or chunks != len(leaves):
        raise Corrupt(
            f"folder {digest} has {folders} folders and {chunks} chunks by its names, and {len(trees)} and {len(leaves)} "
            "by its digests. Restore it from a copy."
        )


def _check_file(digest: str, node: FileNode) -> None:
    end = 0
    for offset, length in node.extents or ():
        if offset < end or length <= 0:
            raise InvalidInput(f"folder {digest}: the parts of the sparse file {node.name!r} are in no order")
        end = offset + length
    if node.chunks < 0 or (node.chunks and node.inline) or not end <= node.size < 2**63:
        raise InvalidInput(f"folder {digest}: the file {node.name!r} does not add up")
    if any(part in (b"", b".", b"..") for part in node.same_as.split(b"/")) and node.same_as:
        raise InvalidInput(
            f"folder {digest}: {node.name!r} is linked to {node.same_as!r}, which is no path in the folder"
        )


class Skipped(msgspec.Struct, frozen=True):
    """Something in the folder that the snapshot does not hold, or not as it was, and why."""

    path: str
    """From the root of the workspace. Always printable and always UTF-8: `\\xff` stands for a byte that is neither."""
    reason: str


class SnapshotRef(msgspec.Struct, frozen=True):
    """A snapshot that is in the store, durably. Its digest is all that it takes to restore it."""

    digest: str
    files: int = 0
    bytes: int = 0
    """The sum of the sizes of all files."""
    new_bytes: int = 0
    """What this snapshot added to the store, as stored. What the store had already costs nothing."""
    skipped: tuple[Skipped, ...] = ()

    def entry(self) -> WorkspaceSnapshot:
        """This snapshot as an entry of a thread's log."""
        return WorkspaceSnapshot(self.digest, self.files, self.bytes)


def shown(path: bytes) -> str:
    """A path as text that can be printed and encoded whatever bytes it has."""
    text = os.fsdecode(path)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))


DEEPEST = 2000
LONGEST = 32 * 1024
"""How deep down a folder of a snapshot may be, and how long its path in bytes: to open one takes a step for each above it.
A walk keeps to these as a restore does, so that whatever was kept can be restored."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Raise these for a workspace that is larger on purpose; they are there for the folder that was named by mistake."""

    file_bytes: int = 2**30
    """A file with more data than this is skipped, and reported. Holes of a sparse file do not count."""
    names: int = 500_000
    """A workspace with more files, folders and links than this is refused."""


def is_too_deep(folder: bytes) -> bool:
    """Whether a folder with this path from the root is too deep down to be part of a snapshot."""
    return len(folder) > DEEPEST and (len(folder) > LONGEST or folder.count(b"/") >= DEEPEST)
