"""The page that shows the log of a thread as it is stored: frame by frame, entry by entry."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from clew._runtime.text import one_line
from clew.checkpointers import Checkpointer, Head
from clew.log import FoldedState, Frame, LeaseTaken, Logged, ProviderKey, UnknownEntry, Usage
from clew.messages import Assistant, System, Text, ToolCall, ToolResult, User, plain_text
from clew.server.inspector.templates import Markup, render
from clew.server.inspector.text import compact, pretty
from clew.server.inspector.visits import Viewer
from clew.threads.reader import check_rest, decoded, frames

__all__ = ["PAGE", "entries_page", "read_stretch"]

PAGE = 50
"""The most frames that are shown on one page."""


async def read_stretch(store: Checkpointer, head: Head, start: int) -> list[tuple[int, Frame]]:
    """Read the frames of one page: at most `PAGE` frames, beginning with the frame at the position `start`, counted
    from 0. Returns a list of pairs: the position of a frame, and the frame."""
    stop = min(head.frames, start + PAGE)
    found = []
    async for number, data in frames(store, head, start=start, stop=stop, previous=None):
        found.append((number, await decoded(store, head.thread_id, number, data)))
    if store.keys is not None and found:
        await check_rest(store, head, stop, found[-1][1].digest)
    return found


class _ShownFrame(NamedTuple):
    number: int
    at: datetime
    digest: str
    entries: list[_ShownEntry]


class _ShownEntry(NamedTuple):
    kind: str
    line: str
    value: str


def entries_page(viewer: Viewer, head: Head, start: int, stretch: list[tuple[int, Frame]]) -> Markup:
    """Return the page that shows the frames in `stretch`, which has pairs of a frame's number and the frame. Numbers
    count from 0; `start` is the number of the first frame on the page."""
    return render(
        "entries.html",
        viewer=viewer,
        title=f"Entries of {head.thread_id}",
        thread_id=head.thread_id,
        total=head.frames,
        frames=[_frame(number, frame) for number, frame in stretch],
        earlier=max(0, start - PAGE) if start > 0 else None,
        later=start + PAGE if start + PAGE < head.frames else None,
    )


def _frame(number: int, frame: Frame) -> _ShownFrame:
    when = datetime.fromtimestamp(frame.time / 1e6, UTC)
    return _ShownFrame(number, when, frame.digest.hex()[:12], [_entry(entry) for entry in frame.entries])


def _entry(entry: Logged) -> _ShownEntry:
    kind, value = _shown(entry)
    return _ShownEntry(kind, _in_short(value), pretty(value))


def _in_short(value: dict[str, Any]) -> str:
    """Return one line about an entry, made from `value`, its fields by name: the words of its message or, if it has no
    message, the fields that are not empty. The line has at most 160 characters."""
    message = value.get("message")
    if isinstance(message, System | User | Assistant):
        calls = [f"→ {block.name}" for block in message.content if isinstance(block, ToolCall)]
        return one_line(" ".join([f"{message.__struct_config__.tag}:", plain_text(message), *calls]), 160)
    filled = {name: item for name, item in value.items() if (item or item == 0) and item != Usage()}
    return one_line(", ".join(f"{name}: {_worded(item)}" for name, item in filled.items()), 160)


def _worded(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, ToolResult):
        return " ".join(part.text for part in item.content if isinstance(part, Text)) or compact(item)
    return compact(item)


def _shown(entry: Logged) -> tuple[str, Any]:
    """Return the kind of an entry, and its fields without secrets. Lease tokens and the keys of provider sessions are
    left out."""
    if isinstance(entry, UnknownEntry):
        return "unknown", {"bytes": len(entry.raw), "why": "this version does not know this kind of entry"}
    if isinstance(entry, FoldedState):
        state = entry.state
        return "folded", {"turns": state.turns, "messages": len(state.history), "status": state.status}
    kind = str(entry.__struct_config__.tag)
    if isinstance(entry, LeaseTaken):
        return kind, {"owner": entry.owner}
    if isinstance(entry, ProviderKey):
        return kind, {"provider": entry.provider, "thread": entry.thread, "messages": entry.messages}
    return kind, msgspec.structs.asdict(entry)
