"""Formats times, counts and values from a log as the inspector's pages show them. The formats that the `clew` command
uses too are in the module `_runtime.text`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from clew._runtime.text import ago, one_line
from clew.log.fold import TITLE_LENGTH

__all__ = ["LONGEST_CODE", "STATUS_WORDS", "Room", "compact", "count", "cut_title", "page_time", "pretty"]

LONGEST_CODE = 20_000
"""The most characters that are shown of a value from a log, and of a text of a tool's result."""

STATUS_WORDS = {
    "running": "Running",
    "waiting": "Waiting",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "done": "Done",
    "queued": "Queued",
}


def count(number: int) -> str:
    """Write a number with commas between thousands: `1,234`."""
    return f"{number:,}"


def cut_title(title: str) -> str:
    """Return a thread's title for a page, with an ellipsis added if it was cut. A title may be the beginning of a
    prompt, cut to a certain length; so a title of exactly that length counts as cut."""
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
    return one_line(json.dumps(_plain(value, Room(longest)), ensure_ascii=False, default=repr), longest)


def pretty(value: Any, room: Room | None = None) -> str:
    """Write any value from a log as indented JSON, but True and False as `yes` and `no`. Only about the first 20,000
    characters are kept, or as many as may still be shown according to `room`; a note then says that there is more."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    longest = LONGEST_CODE if room is None else room.most(LONGEST_CODE)
    own = Room(longest)
    text = json.dumps(_plain(value, own), indent=2, ensure_ascii=False, default=repr)
    is_cut = own.left <= 0 or len(text) > longest
    if room is not None:
        room.spend(min(len(text), longest), is_short=is_cut and longest < LONGEST_CODE)
    return f"{text[:longest]}\n… and more; export the thread to see all" if is_cut else text


class Room:
    """Counts how many more characters may be shown, for example on a page. When none are left, the rest of a value is
    not looked at, because it may have a million items."""

    __slots__ = ("is_short", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.is_short = False
        """Whether there was something that would have been shown if there had been more room."""

    def most(self, longest: int, each: int = 1) -> int:
        """Return how many characters of a text may be shown: at most `longest`, and at most as many as this object
        still allows. Each character of this text counts as `each` characters."""
        return max(0, min(longest, self.left // each))

    def spend(self, number: int, *, is_short: bool = False) -> None:
        """Subtract this many characters from those that may still be shown. With `is_short`, also record that something
        was left out because there was not enough room for it."""
        self.left -= number
        self.is_short = self.is_short or is_short

    def cut(self, text: str, longest: int, *, start: int = 0, each: int = 1) -> str:
        """Return the text from the character at `start` on, cut to `longest` characters, or to fewer if this object
        does not allow so many more to be shown. They then count as shown, each of them as `each` characters. If
        characters were cut off, a note at the end says how many."""
        most = self.most(longest, each)
        more = len(text) - start - most
        self.spend((most + min(0, more)) * each, is_short=more > 0 and most < longest)
        shown = text[start : start + most]
        return f"{shown}\n… {more:,} more characters; export the thread to see all" if more > 0 else shown


def _plain(value: Any, room: Room, depth: int = 1) -> Any:
    """Convert a value from a log to a value that JSON can hold. Structs become dicts, and bytes become a text that says
    how many there are. About as many characters as the result takes are subtracted from `room`; when none are left,
    further items are left out. `depth` is how deep the value is nested, because its indentation takes room too."""
    room.left -= 2 * depth
    if isinstance(value, msgspec.Struct):
        kind = value.__struct_config__.tag
        fields = {
            name: _plain(item, room, depth + 1)
            for name, item in msgspec.structs.asdict(value).items()
            if item is not None
        }
        return fields if kind is None else {"kind": kind, **fields}
    if isinstance(value, dict):
        found = {}
        for key, item in value.items():
            if room.left <= 0:
                break
            name = str(key)[: room.left]
            room.left -= len(name) + 2
            found[name] = _plain(item, room, depth + 1)
        return found
    if isinstance(value, list | tuple):
        items = []
        for item in value:
            if room.left <= 0:
                break
            items.append(_plain(item, room, depth + 1))
        return items
    if isinstance(value, bytes):
        room.left -= 20
        return f"({len(value):,} bytes)"
    if isinstance(value, str):
        longest = max(0, room.left)
        room.left -= len(value)
        return value if len(value) <= longest else f"{value[:longest]}… ({len(value):,} characters)"
    return value
