"""Texts as pages show them: times, counts and values. Those that the `clew` command shows too are in `_runtime.text`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from clew._runtime.text import ago, one_line
from clew.log.fold import TITLE_LENGTH

__all__ = ["STATUS_WORDS", "compact", "count", "cut_title", "page_time", "pretty"]

_LONGEST_VALUE = 20_000

STATUS_WORDS = {
    "running": "Running",
    "waiting": "Waiting",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "done": "Done",
}


def count(number: int) -> str:
    """Write a number with commas between thousands: `1,234`."""
    return f"{number:,}"


def cut_title(title: str) -> str:
    """Return a thread's title for a page. A title that has the length at which titles are cut is only the beginning of
    a prompt, so an ellipsis is added to it."""
    return f"{title.rstrip()}…" if len(title) == TITLE_LENGTH else title


class PageTime(NamedTuple):
    """The texts of a `<time>` element: what it shows, its tooltip and its machine-readable form."""

    shown: str
    """What the page shows at first. Its script then replaces it with the time in the reader's own time zone."""
    full: str
    stamp: str


def page_time(when: datetime, relative: bool = False) -> PageTime:
    """Return the texts that a page needs to show a time. With `relative` it is shown as `5m ago`, which the page's
    script keeps up to date."""
    utc = when.astimezone(UTC)
    full = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    today = utc.date() == datetime.now(UTC).date()
    shown = f"{ago(when)} ago" if relative else f"{utc:%H:%M:%S}" if today else full[:16]
    return PageTime(shown, full, utc.isoformat(timespec="milliseconds"))


def compact(value: Any, longest: int = 120) -> str:
    """Write any value from a log as JSON on one line, cut after `longest` characters."""
    return one_line(json.dumps(_plain(value, _Room(longest)), ensure_ascii=False, default=repr), longest)


def pretty(value: Any) -> str:
    """Write any value from a log as indented JSON, but True and False as `yes` and `no`. Only about the first 20,000
    characters are kept; a note then says that there is more."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    room = _Room(_LONGEST_VALUE)
    text = json.dumps(_plain(value, room), indent=2, ensure_ascii=False, default=repr)
    if room.left <= 0 or len(text) > _LONGEST_VALUE:
        return f"{text[:_LONGEST_VALUE]}\n… and more; export the thread to see all"
    return text


class _Room:
    """Counts how many more characters of a value may be shown. When none are left, the rest of the value is not
    visited: it may have a million items."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


def _plain(value: Any, room: _Room) -> Any:
    """Convert a value from a log to what JSON can hold. Structs become dicts, and bytes become a text with their
    number. The size of what is kept is subtracted from `room`; when no room is left, further items are left out."""
    room.left -= 2
    if isinstance(value, msgspec.Struct):
        kind = value.__struct_config__.tag
        fields = {name: _plain(item, room) for name, item in msgspec.structs.asdict(value).items() if item is not None}
        return fields if kind is None else {"kind": kind, **fields}
    if isinstance(value, dict):
        found = {}
        for key, item in value.items():
            if room.left <= 0:
                break
            room.left -= len(name := str(key)) + 2
            found[name] = _plain(item, room)
        return found
    if isinstance(value, list | tuple):
        items = []
        for item in value:
            if room.left <= 0:
                break
            items.append(_plain(item, room))
        return items
    if isinstance(value, bytes):
        room.left -= 20
        return f"({len(value):,} bytes)"
    if isinstance(value, str):
        room.left -= len(value)
        return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}… ({len(value):,} characters)"
    return value
