"""What a snapshot holds, name by name. Nothing but folders is read."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Literal

import msgspec

from clew.checkpointers import Checkpointer
from clew.workspace._folders import join
from clew.workspace.limits import Limits
from clew.workspace.manifest import FileNode, FolderNode, LinkNode, unpack_folder
from clew.workspace.reading import Bounds, Item, Ref, fetch, items, read_root
from clew.workspace.snapshots import shown

__all__ = ["Listed", "list_snapshot"]

_BATCH = 128
"""Folders that are read at once."""
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One path in a snapshot."""

    path: str
    """From the root of the workspace; always printable."""
    what: Literal["file", "folder", "link"]
    mode: int
    modified_at: datetime
    size: int | None = None
    """Of a file."""
    target: str | None = None
    """Where a link leads."""


async def list_snapshot(checkpointer: Checkpointer, ref: Ref, limits: Limits | None = None) -> list[Listed]:
    """All that a snapshot holds, folders before what is in them, by name."""
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
        first = found.get(node.same_as, item).node  # of several names of one file the first has its size
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
    """A file may have a time that no calendar has."""
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    except (OverflowError, ValueError, OSError):
        return _FIRST if nanoseconds < 0 else _LAST
