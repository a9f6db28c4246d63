"""The page that shows the log of a thread as it is stored: frame by frame, entry by entry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from clew._runtime.aio import settle
from clew._runtime.text import cut, one_line
from clew.checkpointers import Checkpointer, Head
from clew.log import FoldedState, Frame, LeaseTaken, Logged, ProviderKey, UnknownEntry, Usage
from clew.messages import Assistant, System, Text, ToolCall, ToolResult, User
from clew.server.inspector.templates import Markup, render
from clew.server.inspector.text import Room, compact, pretty
from clew.server.inspector.visits import Viewer
from clew.threads.frames import decoded
from clew.threads.reader import check_rest, frames

__all__ = ["PAGE", "entries_page", "read_stretch"]

PAGE = 50
"""The most frames that are shown on one page."""
_ROOM = 1_000_000
"""How many characters of a page's entries are shown."""
_ENTRY, _LINE = 200, 160
"""The room that is counted for each entry, besides its value, and the most characters of the line about it."""


async def read_stretch(store: Checkpointer, head: Head, start: int) -> list[ShownFrame]:
    """Read the frames that one page of a thread's log shows, and return them prepared for the page. `head` is the
    thread's head. They are at most `PAGE` frames, beginning with the frame at the position `start`, counted from 0.

    Only one frame at a time is in memory whole: a frame may hold tens of megabytes.
    """
    stop = min(head.frames, start + PAGE)
    found: list[ShownFrame] = []
    last, room = b"", Room(_ROOM)
    async for number, data in frames(store, head, start=start, stop=stop, previous=None):
        frame = await decoded(store, head.thread_id, number, data)
        found.append(await settle(asyncio.to_thread(_frame, number, frame, room)))
        last = frame.digest
    if store.keys is not None and found:
        await check_rest(store, head, stop, last)
    return found


class ShownFrame(NamedTuple):
    """A frame of a thread's log, prepared for the page that shows the log frame by frame: its number, time and digest,
    and its entries, each with its kind, a short line about it and its value as text."""

    number: int
    at: datetime
    digest: str
    entries: list[_ShownEntry]
    more: int
    """How many entries of the frame are not shown, because the page has no room for them."""


class _ShownEntry(NamedTuple):
    kind: str
    line: str
    value: str


def entries_page(viewer: Viewer, head: Head, start: int, stretch: list[ShownFrame]) -> Markup:
    """Return the page that shows one part of a thread's log: the frames in `stretch`. The first of them has the number
    `start`, counted from 0. `viewer` is the person who looks at the page, and `head` the thread's head."""
    return render(
        "entries.html",
        viewer=viewer,
        title=f"Entries of {head.thread_id}",
        thread_id=head.thread_id,
        total=head.frames,
        frames=stretch,
        earlier=max(0, start - PAGE) if start > 0 else None,
        later=start + PAGE if start + PAGE < head.frames else None,
    )


def _frame(number: int, frame: Frame, room: Room) -> ShownFrame:
    when = datetime.fromtimestamp(frame.time / 1e6, UTC)
    shown: list[_ShownEntry] = []
    for entry in frame.entries:
        if room.left <= 0:
            break
        shown.append(_entry(entry, room))
    return ShownFrame(number, when, frame.digest.hex()[:12], shown, len(frame.entries) - len(shown))


def _entry(entry: Logged, room: Room) -> _ShownEntry:
    kind, value = _shown(entry)
    room.spend(_ENTRY)
    return _ShownEntry(kind, _in_short(value), pretty(value, room))


def _in_short(value: dict[str, Any]) -> str:
    """Return one line about an entry, made from `value`, its fields by name: the words of its message or, if it has no
    message, the fields that are not empty. The line has at most 160 characters."""
    message = value.get("message")
    if isinstance(message, System | User | Assistant):
        words = _joined(block.text for block in message.content if isinstance(block, Text))
        calls = (f"→ {cut(block.name, _LINE)}" for block in message.content if isinstance(block, ToolCall))
        return one_line(" ".join([f"{message.__struct_config__.tag}:", words, *islice(calls, _LINE)]), _LINE)
    filled = {name: item for name, item in value.items() if (item or item == 0) and item != Usage()}
    return one_line(", ".join(f"{name}: {_worded(item)}" for name, item in filled.items()), _LINE)


def _worded(item: Any) -> str:
    if isinstance(item, str):
        return one_line(item, _LINE)
    if isinstance(item, ToolResult):
        return _joined(part.text for part in item.content if isinstance(part, Text)) or compact(item)
    return compact(item)


def _joined(texts: Iterable[str]) -> str:
    """Return these texts on one line, separated by spaces. Each text is cut to 160 characters, and texts after the
    160th are left out, because no page shows a longer line."""
    return " ".join(one_line(text, _LINE) for text in islice(texts, _LINE))


def _shown(entry: Logged) -> tuple[str, Any]:
    """Return the kind of an entry, and its fields without secrets. Left out are lease tokens, and the ids by which
    outside coding programs know a conversation. Of an entry that holds the thread's whole state, and of one of an
    unknown kind, only a few facts are returned, such as the number of turns or bytes."""
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
