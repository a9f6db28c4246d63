"""The page of a thread's files: the workspace (the folder in which the agent works) as it was after a turn, and the
changes between two turns."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from clew import advice
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput
from clew.log import Checkpoint, WorkspaceSnapshot
from clew.server.inspector.templates import Markup, render, thread_url
from clew.server.inspector.visits import Viewer
from clew.workspace import Change, Limits
from clew.workspace.compare import compare
from clew.workspace.manifest import FileNode, FolderNode, LinkNode, shown
from clew.workspace.reader import Item, items, read_file, read_root, read_tree

__all__ = ["files_page"]

_MOST_NAMES = 2000
_MOST_CHANGES = 200
_LARGEST_FILE = 256 * 1024
_MOST_DIFF_LINES = 4000


class _Entry(NamedTuple):
    path: bytes
    item: Item
    depth: int


class _TreeRow(NamedTuple):
    name: str
    level: str
    is_folder: bool = False
    url: str = ""
    """The address of the page that shows this file. Empty for folders, links and special files, which have no page."""
    is_chosen: bool = False
    size: int = 0


class _File(NamedTuple):
    path: str
    exists: bool = True
    size: int = 0
    text: str | None = None
    """The content. None if the file is not UTF-8 text or too large to show."""
    command: str = ""
    """For a file that is too large to show: the shell command that copies the thread's files to a folder. Otherwise
    empty."""


class _Change(NamedTuple):
    path: str
    old_path: str
    kind: str
    added: int
    removed: int
    lines: list[tuple[str, str]]
    """The lines of the diff, each with the CSS class that colours it: (class, text). Empty for a file that is not text,
    or too long to compare."""


class _Shown(NamedTuple):
    turn: int
    turns: list[int]
    against: int
    """The files of `turn` are compared with those at the end of this turn; -1 compares them with an empty folder."""
    others: list[int]
    tree: list[_TreeRow]
    file: _File | None
    changes: list[_Change] | None
    """What changed in the files since the turn `against`. None if nothing did, or if a single file is shown instead."""
    changed: int


async def files_page(
    viewer: Viewer,
    store: Checkpointer,
    thread_id: str,
    state: Checkpoint,
    *,
    turn: int | None,
    against: int | None,
    path: str,
) -> Markup:
    """Return the page of a thread's files as they were after the turn number `turn`. It shows the file at `path` or, if
    `path` is empty, what changed since the turn number `against`.

    `state` is the thread's state, and `viewer` the person who looks at the page. If `turn` is None, it is the newest
    turn after which the files were recorded (a snapshot). If `against` is None, it is the newest turn before `turn`
    that has a snapshot. -1 for `against` compares with an empty folder.
    """
    found = _snapshots(state)
    shown = await _shown(viewer, store, thread_id, state, found, turn, against, path) if found else None
    return render(
        "files.html", viewer=viewer, title=f"Files of {thread_id}", wide=True, thread_id=thread_id, shown=shown
    )


async def _shown(
    viewer: Viewer,
    store: Checkpointer,
    thread_id: str,
    state: Checkpoint,
    found: dict[int, WorkspaceSnapshot],
    turn: int | None,
    against: int | None,
    path: str,
) -> _Shown:
    turn = max(found) if turn is None else turn
    if not 0 <= turn <= state.turns:
        raise InvalidInput(f"there is no turn {turn}. The thread has turns 0 to {state.turns}.")
    against = max((number for number in found if number < turn), default=-1) if against is None else against
    now, was = _at_turn(found, turn), _at_turn(found, against) if against >= 0 else None
    tree = await _tree(store, now) if now is not None else []
    file = await _file(viewer, store, thread_id, turn, tree, path) if path else None
    changes = None if path else await _changes(store, was, now)
    return _Shown(
        turn,
        sorted({*found, turn}),
        against,
        sorted({*found, *([against] if against >= 0 else [])}),
        [_tree_row(entry, thread_id, turn, path) for entry in tree],
        file,
        None if changes is None else [_change(change) for change in changes[:_MOST_CHANGES]],
        len(changes or []),
    )


def _snapshots(state: Checkpoint) -> dict[int, WorkspaceSnapshot]:
    """Return the snapshots (records of all files) of the thread with this state, each under the number of the turn in
    which it was made. Those of turns that a rewind took back are left out."""
    return {fact.turn: WorkspaceSnapshot(*fact.value) for fact in state.facts if fact.kind == "workspace"}


def _at_turn(found: dict[int, WorkspaceSnapshot], turn: int) -> WorkspaceSnapshot | None:
    """Return the newest of the snapshots in `found` that was made in this turn or an earlier one; None if there is
    none. `found` has each snapshot under the number of the turn in which it was made."""
    turns = [number for number in found if number <= turn]
    return found[max(turns)] if turns else None


async def _tree(store: Checkpointer, snapshot: WorkspaceSnapshot) -> list[_Entry]:
    """List the files and folders in a snapshot, each folder before its content. At most `_MOST_NAMES` are listed."""
    limits = Limits()
    root = await read_root(store, snapshot, limits)
    found: list[_Entry] = []
    waiting: list[tuple[bytes, str, int]] = [(b"", root.tree, 0)]
    while waiting and len(found) < _MOST_NAMES:
        path, tree, depth = waiting.pop()
        if path:
            found.append(_Entry(path, Item(FolderNode(path.rpartition(b"/")[2], 0, 0), tree), depth - 1))
        inside = items(await read_tree(store, tree, limits))
        folders = [(name, item) for name, item in inside.items() if item.tree]
        found += [
            _Entry(path + b"/" + name if path else name, item, depth)
            for name, item in sorted(inside.items())
            if not item.tree
        ]
        waiting += [
            (path + b"/" + name if path else name, item.tree, depth + 1) for name, item in sorted(folders, reverse=True)
        ]
    return found[:_MOST_NAMES]


def _tree_row(entry: _Entry, thread_id: str, turn: int, chosen: str) -> _TreeRow:
    name = shown(entry.path.rpartition(b"/")[2])
    level = f"level-{min(entry.depth, 8)}"
    node = entry.item.node
    if isinstance(node, FolderNode):
        return _TreeRow(f"{name}/", level, is_folder=True)
    if isinstance(node, LinkNode):
        return _TreeRow(f"{name} → {shown(node.target)}", level)
    if not isinstance(node, FileNode):
        return _TreeRow(name, level)
    path = shown(entry.path)
    url = thread_url(thread_id, f"/files?turn={turn}&path={quote(path)}")
    return _TreeRow(name, level, url=url, is_chosen=path == chosen, size=node.size)


async def _file(viewer: Viewer, store: Checkpointer, thread_id: str, turn: int, tree: list[_Entry], path: str) -> _File:
    entry = next((entry for entry in tree if shown(entry.path) == path), None)
    if entry is None or not isinstance(entry.item.node, FileNode):
        return _File(path, exists=False)
    size = entry.item.node.size
    if size > _LARGEST_FILE:
        return _File(path, size=size, command=advice.files(thread_id, turn, store=viewer.store))
    data = await read_file(store, entry.path, entry.item)
    try:
        return _File(path, size=size, text=data.decode())
    except UnicodeDecodeError:
        return _File(path, size=size)


async def _changes(
    store: Checkpointer, was: WorkspaceSnapshot | None, now: WorkspaceSnapshot | None
) -> list[Change] | None:
    """Return the list of what changed from the snapshot `was` to the snapshot `now`. If `was` or `now` is None, it
    stands for an empty folder. Changes of folders are left out, unless their mode changed, so the list may be empty. If
    nothing at all differs, returns None."""
    difference = await compare(store, was, now, text=True)
    if not difference:
        return None
    return [change for change in difference.changes if change.what != "folder" or change.kind == "mode"]


def _change(change: Change) -> _Change:
    lines = (change.text or "").splitlines()[2:]
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    made = [(_line_kind(line), line or " ") for line in lines[:_MOST_DIFF_LINES]]
    if len(lines) > _MOST_DIFF_LINES:
        made.append(("at", f"… {len(lines) - _MOST_DIFF_LINES:,} more lines"))
    return _Change(change.path, change.old_path or "", change.kind, added, removed, made)


def _line_kind(line: str) -> str:
    return {"+": "add", "-": "del", "@": "at"}.get(line[:1], "same")
