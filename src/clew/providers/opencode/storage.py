"""Copies conversations out of opencode's database into export folders, tells which of database and folder is newer, and
finds and lists the conversations of the database. An export folder holds:

    session.json                 the manifest: rows of the session, its sub-agents' sessions, and smaller tables
    ses_…/000000.jsonl           the messages of a session in order, each followed by its parts, one row a line
    tool-output/tool_…           tool results that were too long for a row, which names the file

The parts of a message are its texts, tool calls and so on. The numbered files are called pieces. A piece ends with the
first message that brings it to 64 KiB. So a growing conversation changes only its last piece.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from clew.errors import Corrupt, InvalidInput
from clew.providers.base import NativeSession, Standing
from clew.providers.fields import from_milliseconds
from clew.providers.files import make_folder, put_if_changed, sweep
from clew.providers.opencode.database import (
    Row,
    columns_of,
    decode,
    encode,
    is_session,
    opened,
    quoted,
    sealed,
    select,
    time_in,
)

__all__ = [
    "LARGE",
    "MANIFEST",
    "OUTPUTS",
    "PRIVATE",
    "Manifest",
    "Sheet",
    "export",
    "find",
    "load",
    "manifest_rows",
    "message_rows",
    "pieces",
    "rows_of",
    "save",
    "sessions",
    "small_tables",
    "standing",
    "tree",
]


MANIFEST = "session.json"
OUTPUTS = "tool-output"
LARGE = 64 * 1024
_FORMAT = 1
_NEEDED = {"id", "session_id", "time_created", "time_updated", "data"}


PRIVATE = frozenset({"session_share"})
"""Tables of opencode's database that are not exported, because they hold the secret of the link by which others can
read a session."""
_OUTPUT = re.compile(rb'"outputPath":"(?:[^"\\]|\\.)*\b(tool_[0-9A-Za-z]+)"')
_Spot = tuple[int, str]
"""The place of a message in its session: the time at which the message was made, and its id. Messages are sorted by the
time, then by the id."""
_START: _Spot = (-1, "")
_Name = tuple[str, str]
_SHORTEST = 6
"""The fewest characters of a session key, not counting the prefix `ses_`, that are accepted for the whole key. Fewer
would be ambiguous, because the keys of one day begin alike."""
_PART_OF_KEY = re.compile(r"[0-9A-Za-z_]+")
_PROMPTS = """SELECT session_id, sum(substr(data, 1, 14) = '{"role":"user"') FROM message GROUP BY session_id"""


class Sheet(msgspec.Struct, frozen=True):
    """The entry for one session in the manifest of an export folder. It says how many messages and parts of messages
    (such as texts and tool calls) the export of the session has, and in how many numbered files (`pieces`) they are. It
    also holds the session's rows of all other tables of the database."""

    id: str
    messages: int
    parts: int
    updated: int
    """The latest time, in milliseconds, at which a message or part of the session was changed."""
    pieces: int
    tables: dict[str, list[dict[str, msgspec.Raw]]]
    """The rows that are in the manifest itself, by table: the session's own row, its to-do list, and every other row
    that names the session. Messages and parts are in files of their own."""


class Manifest(msgspec.Struct, frozen=True):
    """The content of `session.json` in an export folder: the key of the conversation, and an entry for its session and
    for each session of its sub-agents."""

    key: str
    sessions: list[Sheet]
    """One entry for each session. The conversation's own comes first, then those of its sub-agents."""
    provider: str = "opencode"
    format: int = _FORMAT

    def sheet(self, session: str) -> Sheet | None:
        return next((sheet for sheet in self.sessions if sheet.id == session), None)


def load(folder: Path) -> Manifest:
    """Read the manifest `session.json` of an export folder, which holds Clew's copy of one conversation. Raises
    `Corrupt` if the folder holds no conversation of opencode, or one in an unknown format."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise Corrupt(f"{folder} holds no conversation of opencode: it has no {MANIFEST}") from None
    except msgspec.DecodeError as error:
        raise Corrupt(f"{path} is damaged: {error}. Restore it from a copy.") from error
    if manifest.provider != "opencode" or manifest.format != _FORMAT or manifest.sheet(manifest.key) is None:
        raise Corrupt(f"{path} is not a conversation of opencode in a format that this Clew knows. Upgrade Clew.")
    odd = [sheet.id for sheet in manifest.sessions if not is_session(sheet.id)]
    if odd:
        raise Corrupt(f"{path} is damaged: {odd[0]!r} is not a session key of opencode. Restore it from a copy.")
    return manifest


def save(folder: Path, manifest: Manifest) -> None:
    """Write the manifest `session.json` of an export folder, which holds Clew's copy of one conversation, unless the
    file has this content already."""
    put_if_changed(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def manifest_rows(sheet: Sheet) -> Iterator[tuple[str, Row]]:
    """Yield the rows in `sheet`, the entry for one session in an export folder's manifest, each as table name and row.
    The session's own row comes first. Rows of messages, and of their parts such as texts and tool calls, are not in the
    manifest."""
    for table in sorted(sheet.tables, key=lambda table: (table != "session", table)):
        for row in sheet.tables[table]:
            yield table, sealed(row)


def pieces(folder: Path, session: str) -> list[Path]:
    return sorted((folder / session).glob("*.jsonl"))


def rows_of(folder: Path, sheet: Sheet) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a session's messages, and of their parts such as texts and tool calls, from an export folder.
    Each is given as table name and row, in order: each message, then its parts. `sheet` is the entry for the session in
    the folder's manifest. Raises `Corrupt` if one of the session's files is missing or damaged."""
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
                raise Corrupt(f"{where} is damaged: it is not a row of {sheet.id}. Restore it from a copy.")
            yield table, row


def tree(connection: sqlite3.Connection, key: str) -> list[str]:
    """Return the keys of a session and of its sub-agents' sessions, at any depth. The session itself comes first, then
    the sessions of its sub-agents, then those of their sub-agents, and so on; each level is in the order in which its
    sessions began. The list is empty if the session does not exist."""
    return [
        row[0]
        for row in connection.execute(
            "WITH RECURSIVE tree(id, depth) AS (SELECT id, 0 FROM session WHERE id = ? UNION "
            "SELECT session.id, depth + 1 FROM session JOIN tree ON session.parent_id = tree.id WHERE depth < 100) "
            "SELECT tree.id FROM tree JOIN session USING (id) ORDER BY depth, time_created, tree.id",
            (key,),
        )
    ]


def small_tables(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the smaller tables whose rows belong to sessions and are exported, such as the to-do lists.
    The tables of sessions, of messages and of their parts (such as texts and tool calls) are not among them."""
    ordinary = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE 'CREATE TABLE%' ORDER BY name"
    names = [row[0] for row in connection.execute(ordinary)]
    others = [name for name in names if name not in {"session", "message", "part"} | PRIVATE]
    return [name for name in others if "session_id" in columns_of(connection, name)]


def message_rows(
    connection: sqlite3.Connection, session: str, start: _Spot = _START
) -> Iterator[tuple[Row, list[Row]]]:
    """Yield each message of a session together with its parts (pieces such as a text or a tool call), as database rows
    in the order of the conversation. `start` is the time in milliseconds and the id of the first message to yield; by
    default all messages are yielded."""
    messages = select(
        connection,
        "SELECT * FROM message WHERE session_id = ? AND (time_created, id) >= (?, ?) ORDER BY time_created, id",
        (session, *start),
    )
    for message in messages:
        parts = select(connection, "SELECT * FROM part WHERE message_id = ? ORDER BY id", (message["id"],))
        yield message, list(parts)


def export(connection: sqlite3.Connection, key: str, folder: Path, outputs: Path) -> bool:
    """Copy a conversation from the database into an export folder, or bring an earlier copy up to date. Returns False
    if there is no session with this key. `outputs` is the folder in which opencode keeps long tool results."""
    sessions = tree(connection, key)
    if not sessions:
        return False
    odd = [session for session in sessions if not is_session(session)]
    if odd:
        raise Corrupt(
            f"{odd[0]!r}, a sub-agent of {key} in opencode's database, is not a session key. Delete it there."
        )
    make_folder(folder)
    sweep(folder)
    kept = _kept(folder, key)
    sheets = [_sheet(connection, session, kept, folder, outputs) for session in sessions]
    for stray in folder.glob("ses_*"):
        if stray.name not in sessions:
            shutil.rmtree(stray)
    save(folder, Manifest(key, sheets))
    return True


def _kept(folder: Path, key: str) -> Manifest | None:
    """Return the manifest (the content of `session.json`) that an earlier export of this conversation wrote into the
    export folder `folder`. Returns None if there is none, or if that export was interrupted, so that everything is
    written anew."""
    try:
        manifest = load(folder)
    except Corrupt:
        return None
    return manifest if manifest.key == key else None


def _sheet(connection: sqlite3.Connection, session: str, kept: Manifest | None, folder: Path, outputs: Path) -> Sheet:
    last = kept.sheet(session) if kept else None
    messages, of_messages = _count(connection, "message", session)
    parts, of_parts = _count(connection, "part", session)
    updated = max(of_messages, of_parts)
    number = last.pieces if last else 0
    if last is None or (last.messages, last.parts, last.updated) != (messages, parts, updated):
        (folder / MANIFEST).unlink(missing_ok=True)  # without it the folder counts as incomplete until all is written
        number = _write_pieces(connection, session, last, folder, outputs)
    return Sheet(session, messages, parts, updated, number, _small_rows(connection, session))


def _count(connection: sqlite3.Connection, table: str, session: str) -> tuple[int, int]:
    """Return how many rows of this table belong to the session, and the latest time at which one of them was changed,
    in milliseconds since 1970."""
    query = f"SELECT count(*), coalesce(max(time_updated), 0) FROM {quoted(table)} WHERE session_id = ?"  # noqa: S608 - quoted
    count, updated = connection.execute(query, (session,)).fetchone()
    return count, time_in(updated)


def _small_rows(connection: sqlite3.Connection, session: str) -> dict[str, list[dict[str, msgspec.Raw]]]:
    found = {"session": list(select(connection, "SELECT * FROM session WHERE id = ?", (session,)))}
    for table in small_tables(connection):
        query = f"SELECT * FROM {quoted(table)} WHERE session_id = ? ORDER BY rowid"  # noqa: S608 - quoted
        found[table] = list(select(connection, query, (session,)))
    return {table: [opened(row) for row in rows] for table, rows in found.items() if rows}


def _write_pieces(connection: sqlite3.Connection, session: str, last: Sheet | None, folder: Path, outputs: Path) -> int:
    """Write a session's messages into an export folder, in numbered files called pieces. Pieces that are up to date are
    not written again, and those that are no longer needed are deleted. Returns how many pieces the session has then.
    `last` is the manifest's entry from an earlier export; None if there was none. Long tool results that the messages
    name are copied from `outputs`, where opencode keeps them."""
    number, start = _first_stale(connection, session, last, folder)
    home = folder / session
    held = bytearray()
    for message, parts in message_rows(connection, session, start):
        held += encode("message", message)
        for part in parts:
            held += encode("part", part)
        if len(held) >= LARGE:
            _put_piece(home / f"{number:06d}.jsonl", bytes(held), folder, outputs)
            held.clear()
            number += 1
    if held:
        _put_piece(home / f"{number:06d}.jsonl", bytes(held), folder, outputs)
        number += 1
    for path in pieces(folder, session)[number:]:
        path.unlink()
    return number


def _put_piece(path: Path, data: bytes, folder: Path, outputs: Path) -> None:
    put_if_changed(path, data)
    for name in set(_OUTPUT.findall(data)):
        source = outputs / name.decode()
        target = folder / OUTPUTS / name.decode()
        if not target.exists() and source.is_file() and not source.is_symlink():
            put_if_changed(target, source.read_bytes())


def _first_stale(connection: sqlite3.Connection, session: str, last: Sheet | None, folder: Path) -> tuple[int, _Spot]:
    """Find out which of a session's numbered files (pieces) in an export folder must be written again: one piece and
    all after it. Returns the number of that piece, and the time and id of the message with which it begins. `last` is
    the session's entry in the manifest of the earlier export; None if there was none.

    It is the first piece in which a message or part was changed since that export; the last piece if nothing was
    changed. Number 0, so that all is written again, is returned if there was no earlier export, if pieces are missing
    or damaged, or if rows before the changed piece were added or deleted.
    """
    paths = pieces(folder, session)
    if last is None or len(paths) != last.pieces:
        return 0, _START
    try:
        return _stale_since(connection, session, last, paths)
    except Corrupt:
        return 0, _START  # only the copy is damaged: write it again


def _stale_since(connection: sqlite3.Connection, session: str, last: Sheet, paths: list[Path]) -> tuple[int, _Spot]:
    changed = connection.execute(
        "SELECT time_created, id FROM message WHERE session_id = ?1 AND (time_updated >= ?2 OR id IN "
        "(SELECT message_id FROM part WHERE session_id = ?1 AND time_updated >= ?2)) ORDER BY time_created, id LIMIT 1",
        (session, last.updated),
    ).fetchone()
    spots = [_first_of(path) for path in paths]
    number = max((at for at, spot in enumerate(spots) if changed is None or spot <= changed), default=0)
    if number == 0:
        return 0, _START
    again = [decode(line, str(path))[0] for path in paths[number:] for line in path.read_bytes().splitlines()]
    before = connection.execute(
        "SELECT count(DISTINCT message.id), count(part.id) FROM message LEFT JOIN part ON part.message_id = message.id "
        "WHERE message.session_id = ? AND (message.time_created, message.id) < (?, ?)",
        (session, *spots[number]),
    ).fetchone()
    if before != (last.messages - again.count("message"), last.parts - again.count("part")):
        return 0, _START
    return number, spots[number]


def _first_of(path: Path) -> _Spot:
    with path.open("rb") as file:
        _, row = decode(file.readline(), str(path))
    return row["time_created"], row["id"]


def standing(connection: sqlite3.Connection, key: str, folder: Path) -> Standing:
    """Return how the conversation with this key in opencode's database compares with the copy of it in `folder`, which
    an export has written. `absent`: it is not in the database. `behind`: the copy has more or newer messages. `same`:
    both are equal. `ahead`: the database has more or newer messages. `apart`: each side has something that the other
    lacks.

    Messages and their parts (such as texts and tool calls) are matched by id. If a message or part differs, the side on
    which it was changed later counts as newer.
    """
    sessions = tree(connection, key)
    if not sessions:
        return "absent"
    here = _times(connection, sessions)
    more_here = more_there = False
    common = 0
    for sheet in load(folder).sessions:
        for table, row in rows_of(folder, sheet):
            name = (table, row["id"])
            if name not in here:
                more_there = True
                continue
            common += 1
            there = time_in(row["time_updated"])
            if here[name] != there and _data(connection, name) != row["data"]:
                more_here |= here[name] > there
                more_there |= here[name] < there
    more_here |= common < len(here)
    if more_here and more_there:
        return "apart"
    return "ahead" if more_here else "behind" if more_there else "same"


def _times(connection: sqlite3.Connection, sessions: list[str]) -> dict[_Name, int]:
    found: dict[_Name, int] = {}
    for session in sessions:
        for table in ("message", "part"):
            query = f"SELECT id, time_updated FROM {quoted(table)} WHERE session_id = ?"  # noqa: S608 - quoted
            found.update({(table, name): time_in(updated) for name, updated in connection.execute(query, (session,))})
    return found


def _data(connection: sqlite3.Connection, name: _Name) -> str:
    query = f"SELECT data FROM {quoted(name[0])} WHERE id = ?"  # noqa: S608 - quoted
    found = connection.execute(query, (name[1],)).fetchone()
    if found is None:
        raise Corrupt(f"opencode's database is damaged: an index of {name[0]} leads to no row. Restore it from a copy.")
    data: str = found[0]
    return data


def find(connection: sqlite3.Connection, session: str) -> str | None:
    """Return the key of a session in the database. `session` is its key, or a part of the key that no other has.
    Returns None if there is none. Raises `InvalidInput` if several keys have that part."""
    if is_session(session):
        return session if connection.execute("SELECT 1 FROM session WHERE id = ?", (session,)).fetchone() else None
    if not _PART_OF_KEY.fullmatch(session) or len(session.removeprefix("ses_")) < _SHORTEST:
        return None
    found = [row[0] for row in connection.execute("SELECT id FROM session WHERE instr(id, ?)", (session,))]
    if len(found) > 1:
        named = ", ".join(sorted(found)[:3])
        raise InvalidInput(
            f"{session!r} is a part of {len(found)} session keys of opencode: {named} … Give more of the key."
        )
    return str(found[0]) if found else None


def sessions(connection: sqlite3.Connection, path: Path) -> Iterator[NativeSession]:
    """Describe the sessions in the database, newest first, without those of sub-agents. `path` is the path of the
    database, which goes into the descriptions. Prompts are counted without decoding messages, so the list is fast."""
    prompts = dict(connection.execute(_PROMPTS).fetchall())
    query = "SELECT * FROM session WHERE parent_id IS NULL ORDER BY time_updated DESC, id"
    for row in select(connection, query, ()):
        yield NativeSession(
            provider="opencode",
            key=row["id"],
            path=path,
            cwd=row["directory"],
            title=row["title"],
            exchanges=prompts.get(row["id"], 0),
            created_at=from_milliseconds(row["time_created"]),
            updated_at=from_milliseconds(row["time_updated"]),
        )
