"""Whether a plan can be carried out, found out before anything is changed. The disk is only looked at."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from clew.errors import InvalidInput, Unavailable, UsageError
from clew.workspace._folders import Folders, explained, join, split
from clew.workspace.manifest import FileNode, LinkNode
from clew.workspace.planning import FileWork, LinkWork, NameWork, Plan
from clew.workspace.reading import data_size
from clew.workspace.snapshots import shown

__all__ = ["check_plan"]


def check_plan(root: int, plan: Plan, own_files: Collection[bytes], skipped: Mapping[str, str]) -> None:
    """Refuse a plan that this folder, open as `root`, is in the way of.

    `own_files` are the store's, from the root; `skipped` says why something is in no snapshot. A file that has names
    outside the workspace is moved from those to touch to those to write: changing it in place would change it there.
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


def _check_lengths(root: int, plan: Plan) -> None:
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


def _spare_shared_files(folders: Folders, plan: Plan) -> None:
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


def _check_room(root: int, plan: Plan) -> None:
    """Removing and replacing files makes room too; how much is not known to the byte, so it is not the last word."""
    facts = os.fstatvfs(root)
    needed, free = plan.data - plan.freed, facts.f_bavail * facts.f_frsize
    if needed > free:
        raise Unavailable(
            f"this takes {needed} bytes of disk space, and {free} are left. Nothing was changed. Free some space."
        )
