"""A thread's log entry by entry, with the times at which they were written: for people, and as JSON for their tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from clew.checkpointers import Head
from clew.log import FIRST, FoldedState, Frame, LeaseTaken, Logged, ProviderKey, UnknownEntry
from clew.threads.reader import Source, decoded, frames
from clew.threads.views.render import plain_object

__all__ = ["Line", "lines_of", "read_lines"]

_SECRET = {ProviderKey: ("key",), LeaseTaken: ("token",)}
"""What goes on with a conversation elsewhere, or proves who may write, is no reader's business."""


class Line(msgspec.Struct, frozen=True):
    """One entry as it stands in the log."""

    frame: int
    at: datetime
    kind: str
    entry: Logged

    def fields(self) -> dict[str, Any]:
        """What it says, for JSON. Secrets are left out, and a folded state is told by what it adds up to."""
        if isinstance(self.entry, FoldedState):
            state = self.entry.state
            return {"turns": state.turns, "messages": len(state.messages), "status": state.status}
        if isinstance(self.entry, UnknownEntry):
            return {"bytes": len(self.entry.raw)}
        hidden = _SECRET.get(type(self.entry), ())
        return {
            name: plain_object(getattr(self.entry, name)) for name in self.entry.__struct_fields__ if name not in hidden
        }


async def read_lines(source: Source, head: Head, start: int = 0) -> AsyncIterator[Line]:
    """Every entry of the log that this head describes, from a frame on, checked as it is read."""
    previous = None if start else FIRST
    async for number, data in frames(source, head, start=start, previous=previous):
        for line in lines_of(number, await decoded(source, head.thread_id, number, data)):
            yield line


def lines_of(number: int, frame: Frame) -> list[Line]:
    """The entries of one frame."""
    at = datetime.fromtimestamp(frame.time / 1e6, UTC)
    return [Line(number, at, _kind(entry), entry) for entry in frame.entries]


def _kind(entry: Logged) -> str:
    return "unknown" if isinstance(entry, UnknownEntry) else str(entry.__struct_config__.tag)
