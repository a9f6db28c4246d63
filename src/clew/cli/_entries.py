"""Entries of a log, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clew.threads.views.entries import Line

__all__ = ["entry_text", "print_entry"]

_WORDS, _LONGEST = 120, 160
_PLACES = frozenset({"message", "index", "turn"})
"""Numbers of which 0 says something."""


def print_entry(line: Line) -> None:
    """As JSON, all of it."""
    from clew.cli._output import print_json

    print_json({"frame": line.frame, "at": line.at, "kind": line.kind, "entry": line.fields()})


def entry_text(line: Line) -> str:
    """Where it stands, when it was written, what it is, and the beginning of what it says."""
    import msgspec

    from clew.cli._conversation import said_lines
    from clew.cli._text import cut, one_line
    from clew.log import MessageAdded

    if isinstance(line.entry, MessageAdded):
        said = " · ".join(said_lines(line.entry.message, _WORDS))
    else:
        said = msgspec.json.encode(_told(line.fields()), enc_hook=str).decode()[1:-1]
    moment = f"{line.at.astimezone():%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return f"{line.frame:>5}  {moment}  {line.kind:<11} {cut(one_line(said), _LONGEST)}"


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing."""
    said = {name: _told(value) if isinstance(value, dict) else value for name, value in fields.items()}
    return {name: value for name, value in said.items() if value or value is False or name in _PLACES}
