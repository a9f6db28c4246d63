"""What a snapshot holds, read back from the store by the format alone."""

from __future__ import annotations

from clew.checkpointers import Checkpointer
from clew.log.blobs import unpack_blob
from clew.threads.ops.gc import below
from clew.workspace.manifest import FileNode, FolderNode, LinkNode, Node, SnapshotRef, unpack_folder

__all__ = ["contents", "is_whole", "nodes"]


async def nodes(store: Checkpointer, ref: SnapshotRef) -> dict[bytes, tuple[Node, list[str]]]:
    """Every node by its path, with the digests of its chunks; the root folder itself is at the empty path."""
    found: dict[bytes, tuple[Node, list[str]]] = {}
    waiting = [(b"", ref.digest)]
    while waiting:
        path, digest = waiting.pop()
        tree = unpack_folder(digest, (await store.get_blobs([digest]))[digest], store.keys)
        trees, leaves = iter(tree.trees), iter(tree.leaves)
        for node in tree.nodes:
            at = b"" if digest == ref.digest else path + b"/" + node.name if path else node.name
            found[at] = (node, [next(leaves) for _ in range(node.chunks)] if isinstance(node, FileNode) else [])
            if isinstance(node, FolderNode):
                waiting.append((at, next(trees)))
    return found


async def contents(store: Checkpointer, ref: SnapshotRef) -> dict[bytes, bytes | None]:
    """What is at each path: the bytes of a file, where a link leads, None for a folder."""
    found: dict[bytes, bytes | None] = {}
    for path, (node, leaves) in (await nodes(store, ref)).items():
        if isinstance(node, FileNode):
            packed = await store.get_blobs(leaves)
            data = node.inline + b"".join(unpack_blob(leaf, packed[leaf], store.keys) for leaf in leaves)
            found[path] = data if node.extents is None else _spread(data, node)
        else:
            found[path] = node.target if isinstance(node, LinkNode) else None
    del found[b""]
    return found


def _spread(data: bytes, node: FileNode) -> bytes:
    whole = bytearray(node.size)
    start = 0
    for offset, length in node.extents or ():
        whole[offset : offset + length] = data[start : start + length]
        start += length
    assert start == len(data)
    return bytes(whole)


async def is_whole(store: Checkpointer, ref: SnapshotRef) -> bool:
    """Whether the store has all that the snapshot reaches."""
    return not await store.missing_blobs(await below(store, [ref.digest]))
