"""From opencode's database to a folder, reading and writing only what changed since the last time."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from clew.errors import Corrupt
from clew.providers._files import make_folder, put_if_changed, sweep
from clew.providers.opencode.database import columns_of, select
from clew.providers.opencode.folders import LARGE, MANIFEST, OUTPUTS, Manifest, Sheet, load, pieces, save
from clew.providers.opencode.ids import is_session
from clew.providers.opencode.rows import Row, decode, encode, opened

__all__ = ["PRIVATE", "export", "message_rows", "small_tables", "tree"]

PRIVATE = frozenset({"session_share"})
"""Tables of a session that stay on the machine: the secret of a link by which others can read it."""
_OUTPUT = re.compile(rb'"outputPath":"(?:[^"\\]|\\.)*\b(tool_[0-9A-Za-z]+)"')
_Spot = tuple[int, str]
"""Where a message stands in its session: its time and its name."""
_START: _Spot = (-1, "")


def tree(connection: sqlite3.Connection, key: str) -> list[str]:
    """This session and those of its sub-agents, in the order in which they began; empty if there is none."""
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
    """The tables whose rows name a session, but for those of messages and parts."""
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    others = [name for name in names if name not in {"session", "message", "part"} | PRIVATE]
    return [name for name in others if "session_id" in columns_of(connection, name)]


def message_rows(
    connection: sqlite3.Connection, session: str, start: _Spot = _START
) -> Iterator[tuple[Row, list[Row]]]:
    """The messages of a session from a place on, in opencode's own order, each with its parts."""
    messages = select(
        connection,
        "SELECT * FROM message WHERE session_id = ? AND (time_created, id) >= (?, ?) ORDER BY time_created, id",
        (session, *start),
    )
    for message in messages:
        parts = select(connection, "SELECT * FROM part WHERE message_id = ? ORDER BY id", (message["id"],))
        yield message, list(parts)


def export(connection: sqlite3.Connection, key: str, folder: Path, outputs: Path) -> bool:
    """Bring this folder up to date; False if there is no such session. `outputs`: where long results of tools are."""
    sessions = tree(connection, key)
    if not sessions:
        return False
    odd = [session for session in sessions if not is_session(session)]
    if odd:
        raise Corrupt(
            f"opencode's database has {odd[0]!r} below {key}, which is no name of a session. Delete it there."
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
    """What the folder holds from the last time; None if it was left half done, and is to be made anew."""
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
        (folder / MANIFEST).unlink(missing_ok=True)  # until all is written, the folder is not whole
        number = _write_pieces(connection, session, last, folder, outputs)
    return Sheet(session, messages, parts, updated, number, _small_rows(connection, session))


def _count(connection: sqlite3.Connection, table: str, session: str) -> tuple[int, int]:
    """How many rows there are, and when one was changed last."""
    query = f"SELECT count(*), coalesce(max(time_updated), 0) FROM {table} WHERE session_id = ?"  # noqa: S608
    count, updated = connection.execute(query, (session,)).fetchone()
    return count, updated


def _small_rows(connection: sqlite3.Connection, session: str) -> dict[str, list[dict[str, msgspec.Raw]]]:
    found = {"session": list(select(connection, "SELECT * FROM session WHERE id = ?", (session,)))}
    for table in small_tables(connection):
        query = f'SELECT * FROM "{table}" WHERE session_id = ? ORDER BY rowid'  # noqa: S608
        found[table] = list(select(connection, query, (session,)))
    return {table: [opened(row) for row in rows] for table, rows in found.items() if rows}


def _write_pieces(connection: sqlite3.Connection, session: str, last: Sheet | None, folder: Path, outputs: Path) -> int:
    """Write the pieces from the first that is out of date; how many there are then."""
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
        if not target.exists() and source.is_file():
            put_if_changed(target, source.read_bytes())


def _first_stale(connection: sqlite3.Connection, session: str, last: Sheet | None, folder: Path) -> tuple[int, _Spot]:
    """The number of the first piece to write anew, and where it begins.

    Rows that are newer than the last export, or as new, lie in it or behind it. What lies before must have as many rows
    as then; else something was taken away there, and all is written anew.
    """
    paths = pieces(folder, session)
    if last is None or len(paths) != last.pieces:
        return 0, _START
    try:
        return _stale_since(connection, session, last, paths)
    except Corrupt:
        return 0, _START  # the copy is damaged, not what it is a copy of


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
