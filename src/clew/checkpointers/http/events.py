"""Server-sent events: the form in which the service sends what happens to a thread, and how the client reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from clew.checkpointers.http.protocol import Broken

__all__ = ["Event", "EventReader", "event"]

_LARGEST = 2**20
"""The most bytes of an event that the client accepts. It asks for no entries, so that its events are short."""


class Event(NamedTuple):
    """One event of a stream. An event without a name is called `message`, as browsers call it. `id` is None if it says
    nothing about the id."""

    name: str
    data: str
    id: str | None = None


def event(name: str, data: str, event_id: str | None = None) -> bytes:
    """Return a server-sent event as bytes. Without a name, browsers call it `message`. `event_id` is what a browser
    sends as `Last-Event-ID` when it connects again; None leaves it as it was, and an empty text resets it.

    The data is split into lines at line feeds only. `splitlines` would also split it at other characters, such as
    U+2028, and the page could then not decode it.
    """
    named = f"event: {name}\n" if name else ""
    numbered = "" if event_id is None else f"id: {event_id}\n"
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"{named}{numbered}{lines}\n".encode()


class EventReader:
    """Splits the body of an answer into server-sent events. Pass it to `feed` in pieces of any size. An event that is
    cut off in the middle is never given out. An event may have up to `largest` bytes."""

    def __init__(self, largest: int = _LARGEST) -> None:
        self._largest = largest
        self._rest = b""
        self._fields: dict[str, str] = {}
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Take the next piece, and yield the events that it completes. Raises `Broken` for an event that is too
        large."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._size += len(line)
            self._check(self._size)
            found = self._take(line.rstrip(b"\r").decode("utf-8", "replace"))
            if found is not None:
                yield found
        self._check(self._size + len(self._rest))

    def _check(self, size: int) -> None:
        if size > self._largest:
            raise Broken(f"it has an event of more than {self._largest} bytes")

    def _take(self, line: str) -> Event | None:
        """Take one line. Returns the event that it ends; None if it ends none."""
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data" and "data" in self._fields:
                value = f"{self._fields['data']}\n{value}"
            self._fields[name] = value
            return None
        fields, self._fields, self._size = self._fields, {}, 0
        if "data" not in fields:
            return None
        return Event(fields.get("event") or "message", fields["data"], fields.get("id"))
