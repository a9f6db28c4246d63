"""A conversation of opencode in a folder: `session.json`, which says what there is, and the messages in pieces beside it.

    session.json                 the rows of the session, of its sub-agents' sessions, and of the smaller tables
    ses_…/000000.jsonl           the messages of a session in their order, each followed by its parts, a row a line
    tool-output/tool_…           what was too long for a tool's result, which names it

A piece ends with the first message that brings it to 64 KiB, so that a conversation that grows changes its last piece alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from clew.errors import Corrupt
from clew.providers._files import put_if_changed
from clew.providers.opencode.ids import is_session
from clew.providers.opencode.rows import Row, decode, sealed

__all__ = [
    "LARGE",
    "MANIFEST",
    "OUTPUTS",
    "Manifest",
    "Sheet",
    "load",
    "manifest_rows",
    "pieces",
    "rows_of",
    "save",
]

MANIFEST = "session.json"
OUTPUTS = "tool-output"
LARGE = 64 * 1024
_FORMAT = 1
_NEEDED = {"id", "session_id", "time_created", "time_updated", "data"}


class Sheet(msgspec.Struct, frozen=True):
    """What a manifest says of one session."""

    id: str
    messages: int
    parts: int
    updated: int
    """When the newest change was made to any of its messages or parts."""
    pieces: int
    tables: dict[str, list[dict[str, msgspec.Raw]]]
    """The rows that are not in pieces: its own, its to-do list, whatever else names it."""


class Manifest(msgspec.Struct, frozen=True):
    key: str
    sessions: list[Sheet]
    """The conversation's own first, then those of its sub-agents."""
    provider: str = "opencode"
    format: int = _FORMAT

    def sheet(self, session: str) -> Sheet | None:
        return next((sheet for sheet in self.sessions if sheet.id == session), None)


def load(folder: Path) -> Manifest:
    """`Corrupt` if this folder holds no conversation of opencode."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise Corrupt(f"{folder} holds no conversation of opencode: it has no {MANIFEST}") from None
    except msgspec.DecodeError as error:
        raise Corrupt(f"{path} is damaged: {error}. Restore it from a copy.") from error
    if manifest.provider != "opencode" or manifest.format != _FORMAT or manifest.sheet(manifest.key) is None:
        raise Corrupt(f"{path} is no conversation of opencode in a form that this Clew knows. Upgrade Clew.")
    odd = [sheet.id for sheet in manifest.sessions if not is_session(sheet.id)]
    if odd:
        raise Corrupt(f"{path} is damaged: {odd[0]!r} is no name of a session of opencode's. Restore it from a copy.")
    return manifest


def save(folder: Path, manifest: Manifest) -> None:
    put_if_changed(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def manifest_rows(sheet: Sheet) -> Iterator[tuple[str, Row]]:
    """The table and the row of all that is not in pieces, the session's own first."""
    for table in sorted(sheet.tables, key=lambda table: (table != "session", table)):
        for row in sheet.tables[table]:
            yield table, sealed(row)


def pieces(folder: Path, session: str) -> list[Path]:
    return sorted((folder / session).glob("*.jsonl"))


def rows_of(folder: Path, sheet: Sheet) -> Iterator[tuple[str, Row]]:
    """The table and the row of a session's messages and parts, in their order."""
    for number in range(sheet.pieces):
        path = folder / sheet.id / f"{number:06d}.jsonl"
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            raise Corrupt(f"{path} is missing. Restore it from a copy.") from None
        for count, line in enumerate(lines, 1):
            where = f"{path}, line {count},"
            table, row = decode(line, where)
            if not row.keys() >= _NEEDED or row["session_id"] != sheet.id:
                raise Corrupt(f"{where} is damaged: it is no row of {sheet.id}. Restore it from a copy.")
            yield table, row
