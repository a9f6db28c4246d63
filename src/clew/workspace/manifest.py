"""The format of snapshots: each folder is stored as one blob, called a tree, which lists the folder's content. Nothing
in this module reads or writes files or stores.

docs/format.md describes the bytes of a tree one by one. A tree is checked when it is read, because its author may be
hostile. The module also holds the types that describe snapshots to callers.
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
"""The most bytes of a file whose content is kept in the blob that lists its folder. For so few bytes, a separate blob
would cost more than it holds."""
MAX_NODES = 500_000
"""The most names that a single folder of a snapshot may have, unless the caller gives another limit. When a folder with
more is read, an error is raised."""
EARLIEST, LATEST = -(2**63) + 1, 2**64 - 1
"""The earliest and the latest modification time that a file, folder or link of a snapshot can have, in nanoseconds
since 1970: from 1677 to 2554."""
DEEPEST = 2000
LONGEST = 32 * 1024
"""`DEEPEST` is the most levels below the root that a folder of a snapshot may lie, and `LONGEST` the most bytes that
its path may have. They are limited because opening a folder takes a step for each folder above it. Taking a snapshot
keeps to the same limits as restoring one, so every snapshot can be restored."""


class _Node(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One name in a folder of a snapshot: a file, a folder or a link. It is encoded as an array that starts with its
    kind. New fields are added at the end and have defaults, so that older snapshots stay readable."""

    name: bytes
    mode: int
    """The permission bits, with set-user-id, set-group-id and sticky."""
    mtime: int
    """The modification time in nanoseconds since 1970."""


class FileNode(_Node, tag="file", frozen=True):
    """A regular file in a snapshot. The bytes of a small file are in `inline`. The bytes of any other file are in
    blobs, and `chunks` is the number of these. The digests of the blobs are in `Tree.leaves` of the folder that holds
    the file."""

    size: int = 0
    chunks: int = 0
    inline: bytes = b""
    extents: tuple[tuple[int, int], ...] | None = None
    """Where the data of a sparse file lies, as offsets and lengths in order. The rest of the file reads as zeros. None
    if the file has no holes."""
    same_as: bytes = b""
    """For a file with several names (hard links): the path of its first name, from the root of the workspace. The first
    name has its own path here. Empty for a file with one name."""


class FolderNode(_Node, tag="folder", frozen=True):
    """A folder inside a folder of a snapshot. Its content is listed in a blob of its own. The digest of that blob is in
    `Tree.trees` of the folder above, which has one digest for each folder in it, in the order of their names."""


class LinkNode(_Node, tag="link", frozen=True):
    """A symbolic link in a snapshot. The link's target is kept as it is and never followed."""

    target: bytes = b""


Node = FileNode | FolderNode | LinkNode


class Tree(msgspec.Struct, frozen=True):
    """The content of one folder of a snapshot: its nodes (names with what they are), sorted by name, and the digests of
    the blobs that they need."""

    nodes: tuple[Node, ...] = ()
    trees: tuple[str, ...] = ()
    """The digests of the trees of the folders in this folder: one for each `FolderNode` in the nodes, in the same
    order."""
    leaves: tuple[str, ...] = ()
    """The digests of the chunks (blobs with parts of a file) of all files in this folder. They are in the order of the
    files, and within a file in the order of its bytes."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Node, ...]).decode


def pack_folder(tree: Tree, keys: Keyring | None = None) -> tuple[str, bytes]:
    """Encode `tree`, the content of a folder, as a blob. Returns the digest and the bytes of the blob. Equal folders
    give equal blobs. `keys` are the encryption keys of the store, None if it has none."""
    return pack_tree(_encode(tree.nodes), tree.trees, tree.leaves, keys)


def unpack_folder(digest: str, packed: bytes, keys: Keyring | None = None, most: int = MAX_NODES) -> Tree:
    """Decode the content of a folder from a blob that `pack_folder` made. `digest` is the digest of the blob, and
    `packed` its bytes as stored. `keys` are the encryption keys of the store, None if it has none.

    Raises `InvalidInput` if the blob is not a folder, has more than `most` names or is hostile, and `Corrupt` if it is
    damaged.
    """
    if not is_tree(packed):
        raise InvalidInput(f"blob {digest} is not a folder, so it is not a snapshot of a workspace")
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
    """Return how many nodes (names) an encoded folder says it has. Reads only its first bytes, without decoding the
    nodes."""
    first = body[0] if body else 0
    if first == 0xDD:
        return int.from_bytes(body[1:5], "big")
    return int.from_bytes(body[1:3], "big") if first == 0xDC else first & 0x0F


def _check(digest: str, nodes: Sequence[Node], trees: Sequence[str], leaves: Sequence[str]) -> None:
    """Raise an error if a decoded folder cannot be right. `nodes` are the names in it, `trees` and `leaves` the digests
    that its folders and files need, and `digest` names the folder in the error. Raises `InvalidInput` if a name would
    lead out of the folder or a value is impossible. Raises `Corrupt` if there are more or fewer digests than the nodes
    need."""
    folders = chunks = 0
    before = b""
    for node in nodes:
        name = node.name
        if name <= before or name in (b".", b"..") or b"/" in name or b"\0" in name:
            raise InvalidInput(
                f"folder {digest} names {name!r}, which is not a valid, unique name in a folder. The snapshot is hostile."
            )
        before = name
        if not 0 <= node.mode <= 0o7777 or not EARLIEST <= node.mtime <= LATEST:
            raise InvalidInput(f"folder {digest}: {name!r} has an impossible mode or time")
        if isinstance(node, FolderNode):
            folders += 1
        elif isinstance(node, LinkNode):
            if not node.target or b"\0" in node.target:
                raise InvalidInput(f"folder {digest}: the target of the link {name!r} is empty or holds a NUL byte")
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
            raise InvalidInput(f"folder {digest}: the parts of the sparse file {node.name!r} are not in order")
        end = offset + length
    if node.chunks < 0 or (node.chunks and node.inline) or not end <= node.size < 2**63:
        raise InvalidInput(f"folder {digest}: the sizes of the file {node.name!r} contradict each other")
    if any(part in (b"", b".", b"..") for part in node.same_as.split(b"/")) and node.same_as:
        raise InvalidInput(
            f"folder {digest}: {node.name!r} is linked to {node.same_as!r}, which is not a path in the folder"
        )


class Skipped(msgspec.Struct, frozen=True):
    """A path that a snapshot or a restore left out or could not handle as asked. `reason` says why in words."""

    path: str
    """The path from the root of the workspace. It is always printable UTF-8: any other byte is shown as an escape such
    as `\\xff`."""
    reason: str


class SnapshotRef(msgspec.Struct, frozen=True):
    """A snapshot that is durably in the store, with numbers about it, such as of files and bytes. Its digest is enough
    to restore it."""

    digest: str
    files: int = 0
    bytes: int = 0
    """The sum of the sizes of all files in the snapshot, in bytes."""
    new_bytes: int = 0
    """The bytes that this snapshot added to the store, counted as stored, after compression and any encryption. Blobs
    that the store already had are not counted."""
    skipped: tuple[Skipped, ...] = ()

    def entry(self) -> WorkspaceSnapshot:
        """Return an entry that records this snapshot, to be appended to a thread's log."""
        return WorkspaceSnapshot(self.digest, self.files, self.bytes)


def shown(path: bytes) -> str:
    """Return a path as text that can be printed and encoded, whatever bytes it has. Bytes that are not printable text
    are shown as escapes."""
    text = os.fsdecode(path)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How many names a workspace may have, and how large its files may be. These limits protect against a folder that
    was named by mistake. For a folder that is large on purpose, raise them."""

    file_bytes: int = 2**30
    """The largest size of a file in bytes, without the holes of a sparse file. A larger file is left out of the
    snapshot and reported."""
    names: int = 500_000
    """The most files, folders and links in a workspace, all together. A snapshot of a workspace with more is refused.
    """


def is_too_deep(folder: bytes) -> bool:
    """Return whether a folder with this path from the root cannot be part of a snapshot, because it is more than 2,000
    levels deep (`DEEPEST`) or its path has more than 32 KiB (`LONGEST`)."""
    return len(folder) > DEEPEST and (len(folder) > LONGEST or folder.count(b"/") >= DEEPEST)
