"""The files of a thread's workspace after a turn, and what two turns differ in."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from clew import advice
from clew.checkpointers import Checkpointer
from clew.errors import InvalidInput
from clew.log import Checkpoint, WorkspaceSnapshot
from clew.server.inspector.html import Html, el, join
from clew.server.inspector.layout import Viewer, empty, field, page, thread_url
from clew.server.inspector.text import plural, size
from clew.workspace import Change, Limits
from clew.workspace.compare import compare
from clew.workspace.manifest import FileNode, FolderNode, LinkNode, shown
from clew.workspace.reader import Item, items, read_file, read_root, read_tree

__all__ = ["files_page"]

_MOST_NAMES = 2000
_LARGEST_FILE = 256 * 1024
_MOST_DIFF_LINES = 4000


class _Entry(NamedTuple):
    path: bytes
    item: Item
    depth: int


def snapshots(state: Checkpoint) -> dict[int, WorkspaceSnapshot]:
    """The snapshots of the current line of work, by turn."""
    return {fact.turn: WorkspaceSnapshot(*fact.value) for fact in state.facts if fact.kind == "workspace"}


def at_turn(found: dict[int, WorkspaceSnapshot], turn: int) -> WorkspaceSnapshot | None:
    """The files as they were after a turn: its own snapshot, or the newest one before it."""
    turns = [number for number in found if number <= turn]
    return found[max(turns)] if turns else None


async def files_page(
    viewer: Viewer,
    store: Checkpointer,
    thread_id: str,
    state: Checkpoint,
    *,
    turn: int | None,
    against: int | None,
    path: str,
) -> Html:
    found = snapshots(state)
    if not found:
        content: Html = empty(
            "No files are kept", el("p", "This thread has no workspace, or none of its turns has changed it yet.")
        )
        return _page(viewer, thread_id, content)
    turn = max(found) if turn is None else turn
    _check(state, turn)
    before = [number for number in found if number < turn]
    against = (max(before) if before else -1) if against is None else against
    now, was = at_turn(found, turn), at_turn(found, against) if against >= 0 else None
    tree = await _tree(store, now) if now is not None else []
    right = await _file(viewer, store, thread_id, turn, tree, path) if path else await _difference(store, was, now)
    picker = _picker(thread_id, found, state.turns, turn, against)
    panel = el(
        "div",
        el("aside", el("h2", "Files"), _tree_html(tree, thread_id, turn, path), class_="tree", data_test="file-tree"),
        el("section", right, class_="diff-panel"),
        class_="files",
    )
    return _page(viewer, thread_id, join(picker, panel))


def _check(state: Checkpoint, turn: int) -> None:
    if not 0 <= turn <= state.turns:
        raise InvalidInput(f"the thread has turns 0 to {state.turns}; there is no turn {turn}")


def _page(viewer: Viewer, thread_id: str, content: Html) -> Html:
    crumbs = el(
        "nav",
        el("a", "Threads", href="/"),
        " / ",
        el("a", thread_id, href=thread_url(thread_id)),
        " / Files",
        class_="crumbs",
        aria_label="Path",
    )
    return page(
        f"Files of {thread_id}", crumbs, el("h1", "Workspace"), content, viewer=viewer, current="thread", wide=True
    )


def _picker(thread_id: str, found: dict[int, WorkspaceSnapshot], turns: int, turn: int, against: int) -> Html:
    numbers = sorted({*found, turn})
    then = [
        el("option", "nothing", value="", selected=against < 0),
        *_options(sorted({*found, *([against] if against >= 0 else [])}), against),
    ]
    return el(
        "form",
        field("Files after", el("select", _options(numbers, turn), name="turn", data_test="files-turn")),
        field("Compared with", el("select", then, name="against", data_test="files-against")),
        el("button", "Show", type="submit", data_test="files-show"),
        method="get",
        action=thread_url(thread_id, "/files"),
        class_="filters",
        data_test="files-form",
    )


def _options(numbers: list[int], chosen: int) -> list[Html]:
    return [
        el("option", f"turn {number}" if number else "the beginning", value=number, selected=number == chosen)
        for number in numbers
    ]


async def _tree(store: Checkpointer, snapshot: WorkspaceSnapshot) -> list[_Entry]:
    """All names, folders before what is in them, up to as many as a page can show."""
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


def _tree_html(tree: list[_Entry], thread_id: str, turn: int, chosen: str) -> Html:
    if not tree:
        return el("p", "No files", class_="hint")
    return el("ul", [_tree_row(entry, thread_id, turn, chosen) for entry in tree])


def _tree_row(entry: _Entry, thread_id: str, turn: int, chosen: str) -> Html:
    name = shown(entry.path.rpartition(b"/")[2])
    level = f"level-{min(entry.depth, 8)}"
    node = entry.item.node
    if isinstance(node, FolderNode):
        return el("li", f"{name}/", class_=f"folder {level}")
    if isinstance(node, LinkNode):
        return el("li", f"{name} → {shown(node.target)}", class_=level)
    if not isinstance(node, FileNode):
        return el("li", name, class_=level)
    path = shown(entry.path)
    link = el(
        "a",
        name,
        href=thread_url(thread_id, f"/files?turn={turn}&path={quote(path)}"),
        aria_current="true" if path == chosen else None,
        data_test="file",
    )
    return el("li", link, el("span", size(node.size), class_="size"), class_=level)


async def _file(viewer: Viewer, store: Checkpointer, thread_id: str, turn: int, tree: list[_Entry], path: str) -> Html:
    entry = next((entry for entry in tree if shown(entry.path) == path), None)
    if entry is None or not isinstance(entry.item.node, FileNode):
        return empty("No such file", el("p", f"After this turn there is no file {path}."))
    title = el("h2", path, class_="path")
    node = entry.item.node
    if node.size > _LARGEST_FILE:
        return join(
            title,
            el("p", f"{size(node.size)}: too long to show. All files of this turn, in a folder: ", class_="hint"),
            el("code", advice.files(thread_id, turn, store=viewer.store), data_test="files-command"),
        )
    data = await read_file(store, entry.path, entry.item)
    try:
        return join(title, el("pre", data.decode(), class_="code file", data_test="file-content"))
    except UnicodeDecodeError:
        return join(title, el("p", f"{size(node.size)} that are no text.", class_="hint"))


async def _difference(store: Checkpointer, was: WorkspaceSnapshot | None, now: WorkspaceSnapshot | None) -> Html:
    difference = await compare(store, was, now, text=True)
    if not difference:
        return join(el("h2", "Changes"), el("p", "Nothing differs.", class_="hint", data_test="no-changes"))
    files = [change for change in difference.changes if change.what != "folder" or change.kind == "mode"]
    return join(el("h2", f"Changes: {plural(len(files), 'file')}"), [_change(change) for change in files[:200]])


def _change(change: Change) -> Html:
    was = f"{change.old_path} → " if change.old_path else ""
    added, removed = _counted(change.text or "")
    sums = (
        el("span", el("span", f"+{added}", class_="plus"), el("span", f"−{removed}", class_="minus"), class_="sums")
        if change.text
        else None
    )
    summary = el(
        "summary",
        el("span", change.kind, class_=f"chip kind-{change.kind}"),
        el("span", f"{was}{change.path}", class_="path"),
        sums,
    )
    body = _diff(change.text) if change.text else el("p", "Not shown: it is no text, or too long.", class_="hint")
    return el("details", summary, body, open=True, class_="change", data_test="change", data_path=change.path)


def _counted(text: str) -> tuple[int, int]:
    lines = text.splitlines()[2:]
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)


def _diff(text: str) -> Html:
    lines = text.splitlines()[2:]
    made = [el("span", line or " ", class_=_line_kind(line)) for line in lines[:_MOST_DIFF_LINES]]
    if len(lines) > _MOST_DIFF_LINES:
        made.append(el("span", f"… {len(lines) - _MOST_DIFF_LINES:,} more lines", class_="at"))
    return el("pre", made, class_="diff", data_test="diff")


def _line_kind(line: str) -> str:
    return {"+": "add", "-": "del", "@": "at"}.get(line[:1], "same")
