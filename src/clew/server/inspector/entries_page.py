"""The log itself: frame by frame, entry by entry, as it is on record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from clew.checkpointers import Checkpointer, Head
from clew.log import FoldedState, Frame, LeaseTaken, Logged, ProviderKey, UnknownEntry, Usage
from clew.messages import Assistant, System, Text, ToolCall, ToolResult, User, plain_text
from clew.server.inspector.html import Html, el
from clew.server.inspector.layout import Viewer, page, thread_url
from clew.server.inspector.text import compact, moment, one_line, plural, pretty
from clew.threads.reader import decoded, frames

__all__ = ["PAGE", "entries_page", "read_stretch"]

PAGE = 50
"""Frames of a page."""


async def read_stretch(store: Checkpointer, head: Head, start: int) -> list[tuple[int, Frame]]:
    """Frames from this one on, as many as a page shows."""
    stop = min(head.frames, start + PAGE)
    found = []
    async for number, data in frames(store, head, start=start, stop=stop, previous=None):
        found.append((number, await decoded(store, head.thread_id, number, data)))
    return found


def entries_page(viewer: Viewer, head: Head, start: int, stretch: list[tuple[int, Frame]]) -> Html:
    thread_id = head.thread_id
    crumbs = el(
        "nav",
        el("a", "Threads", href="/"),
        " / ",
        el("a", thread_id, href=thread_url(thread_id)),
        " / Entries",
        class_="crumbs",
        aria_label="Path",
    )
    links = []
    if start > 0:
        links.append(
            el(
                "a",
                "← Earlier frames",
                href=thread_url(thread_id, f"/entries?start={max(0, start - PAGE)}"),
                data_test="earlier",
            )
        )
    if start + PAGE < head.frames:
        links.append(
            el("a", "Later frames →", href=thread_url(thread_id, f"/entries?start={start + PAGE}"), data_test="later")
        )
    return page(
        f"Entries of {thread_id}",
        crumbs,
        el("div", el("h1", "Entries"), el("span", plural(head.frames, "frame"), class_="hint"), class_="title-row"),
        el("div", [_frame(number, frame) for number, frame in stretch], class_="frames", data_test="frames"),
        el("nav", links, class_="pages", aria_label="Pages") if links else None,
        viewer=viewer,
        current="thread",
    )


def _frame(number: int, frame: Frame) -> Html:
    when = datetime.fromtimestamp(frame.time / 1e6, UTC)
    head = el(
        "header",
        el("h2", f"Frame {number}"),
        moment(when),
        el("code", frame.digest.hex()[:12], class_="hint", title="Digest"),
    )
    return el(
        "section", head, [_entry(entry) for entry in frame.entries], class_="frame", id=f"f{number}", data_test="frame"
    )


def _entry(entry: Logged) -> Html:
    kind, value = _shown(entry)
    return el(
        "details",
        el("summary", el("span", kind, class_="tool"), el("code", _in_short(value), class_="arguments")),
        el("pre", pretty(value), class_="code"),
        class_="call",
        data_test="entry",
        data_kind=kind,
    )


def _in_short(value: dict[str, Any]) -> str:
    """What fits on a line: a message by its words, all else by its fields that say something."""
    message = value.get("message")
    if isinstance(message, System | User | Assistant):
        calls = [f"→ {block.name}" for block in message.content if isinstance(block, ToolCall)]
        return one_line(" ".join([f"{message.__struct_config__.tag}:", plain_text(message), *calls]), 160)
    told = {name: item for name, item in value.items() if (item or item == 0) and item != Usage()}
    return one_line(", ".join(f"{name}: {_worded(item)}" for name, item in told.items()), 160)


def _worded(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, ToolResult):
        return " ".join(part.text for part in item.content if isinstance(part, Text)) or compact(item)
    return compact(item)


def _shown(entry: Logged) -> tuple[str, Any]:
    """Names of outside conversations and tokens of leases are as good as secrets, and are left out."""
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
