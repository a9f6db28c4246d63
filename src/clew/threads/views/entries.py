"""Read a thread's log entry by entry, with the time of each, for people and as JSON for other programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from clew.checkpointers import Head
from clew.log import FIRST, FoldedState, Frame, LeaseTaken, Logged, ProviderKey, UnknownEntry
from clew.threads.frames import Source, decoded
from clew.threads.reader import frames
from clew.threads.views.render import plain_object

__all__ = ["Line", "lines_of", "read_lines"]

_SECRET = {ProviderKey: ("key",), LeaseTaken: ("token",)}
"""For each kind of entry, the fields that are not shown: keys that continue a conversation elsewhere, and tokens that
prove who may write."""


class Line(msgspec.Struct, frozen=True):
    """One entry of the log, with the number of its frame, its time and its kind."""

    frame: int
    at: datetime
    kind: str
    entry: Logged

    def plain(self) -> dict[str, Any]:
        """Return the entry as `clew show --entries` and the service write it in JSON: with the number of its
        frame, its time and its kind. Secrets are left out."""
        return {"frame": self.frame, "at": self.at, "kind": self.kind, "entry": self.fields()}

    def fields(self) -> dict[str, Any]:
        """Return the entry's fields as values for JSON. Secrets are left out.

        For an entry that holds the thread's whole state (a folded state), returns only the status and the numbers of
        turns and messages. For an entry of an unknown kind, returns only its number of bytes.
        """
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
    """Yield every entry of the log that this head describes, from frame `start` on. Each comes as a `Line`: the entry
    with its time, its kind and the number of its frame.

    Raises `Corrupt` if a frame is damaged or does not follow the frame before it.
    """
    previous = None if start else FIRST
    async for number, data in frames(source, head, start=start, previous=previous):
        for line in lines_of(number, await decoded(source, head.thread_id, number, data)):
            yield line


def lines_of(number: int, frame: Frame) -> list[Line]:
    """Return the entries of a frame, each as a `Line`: with the number of the frame (`number`), the frame's time, and
    the kind of the entry."""
    at = datetime.fromtimestamp(frame.time / 1e6, UTC)
    return [Line(number, at, _kind(entry), entry) for entry in frame.entries]


def _kind(entry: Logged) -> str:
    return "unknown" if isinstance(entry, UnknownEntry) else str(entry.__struct_config__.tag)
