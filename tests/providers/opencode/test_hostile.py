"""A database of opencode that somebody prepared: nothing in it runs, and reading it does not take long."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from clew.errors import Corrupt, Unavailable
from clew.providers.opencode.database import connect, open_to_read, open_to_write
from tests.limits import processor_time
from tests.providers.opencode.kept import ANSWERED, change, database, machine

pytestmark = pytest.mark.attack

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id"
SESSION = ["project_id", "parent_id", "slug", "directory", "title", "version", "time_created", "time_updated"]
NAMED = ", ".join(f"x AS {column}" for column in SESSION)


def test_an_endless_view_in_place_of_the_sessions_is_refused_at_opening(tmp_path: Path) -> None:
    here = machine(tmp_path)
    change(here, "DROP TABLE session", f"CREATE VIEW session AS {ENDLESS}, {NAMED} FROM n")
    with processor_time(20):
        for act in (
            lambda: list(here.sessions()),
            lambda: here.find(ANSWERED),
            lambda: here.export(ANSWERED, tmp_path),
        ):
            with pytest.raises(Corrupt, match="'session' is not an ordinary table"):
                act()


def test_a_virtual_table_is_refused_too_and_one_beside_is_not_read(tmp_path: Path) -> None:
    here = machine(tmp_path)
    change(here, "CREATE VIRTUAL TABLE theirs USING fts5(session_id)")
    assert here.export(ANSWERED, tmp_path / "folder")
    change(here, "DROP TABLE part", "CREATE VIRTUAL TABLE part USING fts5(id, message_id, session_id, data)")
    with pytest.raises(Corrupt, match="'part' is not an ordinary table"):
        here.export(ANSWERED, tmp_path / "again")


def test_a_trigger_never_runs(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "a"), machine(tmp_path / "b", empty=True)
    assert here.export(ANSWERED, tmp_path / "folder")
    change(there, "CREATE TRIGGER theirs AFTER INSERT ON session BEGIN DELETE FROM project; END")
    with pytest.raises(Corrupt, match="the trigger 'theirs'"):
        there.install_session(ANSWERED, tmp_path / "folder")
    assert list(there.sessions()) == []


HUGE = "length(hex(zeroblob(900000000)))"


@pytest.mark.parametrize("stored", ["VIRTUAL", "STORED", ""])
@pytest.mark.parametrize("table", ["session", "part", "todo"])
def test_a_generated_column_is_never_computed(tmp_path: Path, table: str, stored: str) -> None:
    here = machine(tmp_path)
    written = f"CREATE TABLE other (session_id text, theirs text /* */ as({HUGE}) {stored})"
    if stored == "STORED":  # which no table gets later
        change(here, written)
    else:
        always = "GENERATED ALWAYS" if stored else ""
        change(here, f"ALTER TABLE {table} ADD COLUMN theirs text {always} as({HUGE}) {stored}")
    with processor_time(20):
        for act in (lambda: list(here.sessions()), lambda: here.export(ANSWERED, tmp_path / "folder")):
            with pytest.raises(Corrupt, match="a generated column in the table"):
                act()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (f"ALTER TABLE session ADD COLUMN theirs integer CHECK({HUGE})", "a CHECK constraint"),
        (f"CREATE TABLE theirs (session_id text, CONSTRAINT c check/**/({HUGE}))", "a CHECK constraint"),
        (f"CREATE TABLE theirs (session_id text default\n({HUGE}))", "a default value that is an expression"),
        (f"CREATE INDEX theirs ON session (id, {HUGE.replace('900000000', 'length(id)')})", "an expression"),
        ("CREATE INDEX theirs ON part (id) WHERE length(data) > 3", "an expression"),
        ("CREATE TRIGGER theirs AFTER DELETE ON message BEGIN DELETE FROM project; END", "the trigger"),
    ],
)
def test_nothing_that_the_file_computes_runs_as_a_session_is_written(tmp_path: Path, statement: str, what: str) -> None:
    here, there = machine(tmp_path / "a"), machine(tmp_path / "b", empty=True)
    assert here.export(ANSWERED, tmp_path / "folder")
    change(there, statement)
    assert list(there.sessions()) == []
    with processor_time(20), pytest.raises(Corrupt, match=f"has {what}( in the .*)? '"):
        there.install_session(ANSWERED, tmp_path / "folder")
    assert list(there.sessions()) == []


def spoil(path: Path, old: bytes, new: bytes) -> None:
    """Change bytes of the file, all over it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"step-finish", b"step\xff\xff\xff\xff\xff\xff\xff"),
        (b"CREATE TABLE `todo`", b"CREATE TAB\xff\xff `todo`"),
        (b"part_session_idx", b"part_ses\xffion_idx"),
    ],
)
def test_a_database_whose_texts_are_not_text_is_damaged(tmp_path: Path, old: bytes, new: bytes) -> None:
    here = machine(tmp_path)
    spoil(database(here), old, new)
    with pytest.raises(Corrupt, match=r"damaged|cannot be read"):
        here.export(ANSWERED, tmp_path / "folder")


PART = f"(SELECT min(rowid) FROM part WHERE session_id = '{ANSWERED}')"


@pytest.mark.parametrize("value", ["'soon'", "x'ff'"])
def test_a_time_that_is_no_time_is_damage(tmp_path: Path, value: str) -> None:
    here = machine(tmp_path)
    assert here.export(ANSWERED, tmp_path / "folder")
    change(here, f"UPDATE part SET time_updated = {value} WHERE rowid = {PART}")
    for act in (here.standing, here.export):
        with pytest.raises(Corrupt, match="is not a time in it"):
            act(ANSWERED, tmp_path / "folder")


@pytest.mark.parametrize("value", ["NULL", "x'ff'"])
def test_an_id_that_is_no_text_is_damage(tmp_path: Path, value: str) -> None:
    here, there = machine(tmp_path / "a"), machine(tmp_path / "b")
    assert here.export(ANSWERED, tmp_path / "folder")
    change(there, f"UPDATE part SET id = {value} WHERE rowid = {PART}")
    with pytest.raises(Corrupt, match="is not an id in it"):
        there.install_session(ANSWERED, tmp_path / "folder")


def test_an_index_that_leads_nowhere_is_damage(tmp_path: Path) -> None:
    here = machine(tmp_path)
    assert here.export(ANSWERED, tmp_path / "folder")
    empty = "(SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_account_1')"
    change(
        here,
        f"UPDATE part SET time_updated = time_updated + 1, data = '{{}}' WHERE rowid = {PART}",
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_schema SET rootpage = {empty} WHERE name = 'sqlite_autoindex_part_1'",
    )
    with pytest.raises(Corrupt, match="leads to no row"):
        here.standing(ANSWERED, tmp_path / "folder")


def test_a_file_for_which_sqlite_says_that_it_has_no_memory_is_named(tmp_path: Path) -> None:
    path = database(machine(tmp_path))
    with pytest.raises(Unavailable, match=r"opencode\.db could not be read: SQLite .* no memory"), open_to_read(path):
        raise MemoryError


def test_names_texts_and_comments_are_not_taken_for_what_computes(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "a"), machine(tmp_path / "b", empty=True)
    assert here.export(ANSWERED, tmp_path / "folder")
    kept = "[default] text DEFAULT 'as (check' -- default ( as check"
    change(there, f'CREATE TABLE theirs ("check" text, `as` text, {kept}\n /* as */)')
    change(there, 'CREATE INDEX "where (" ON theirs ("check", `as` DESC)')
    there.install_session(ANSWERED, tmp_path / "folder")
    assert [session.key for session in there.sessions()] == [ANSWERED]


def test_a_query_that_takes_more_steps_than_the_file_explains_is_ended(tmp_path: Path) -> None:
    path = database(machine(tmp_path))
    endless = f"SELECT count(*) FROM ({ENDLESS} FROM n)"
    with processor_time(60):
        for opened in (open_to_read, open_to_write):
            with pytest.raises(Corrupt, match="more steps to read than its size explains"), opened(path) as connection:
                connection.execute(endless).fetchone()


def test_a_connection_trusts_nothing_in_the_file(tmp_path: Path) -> None:
    connection = connect(database(machine(tmp_path)), "ro", wait=0.0)
    try:
        assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
        assert connection.execute("PRAGMA cell_size_check").fetchone() == (1,)
    finally:
        connection.close()
