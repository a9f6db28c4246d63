"""Reading the SQLite file of another program: nothing in it is run, and nothing in it can keep the reader busy for long."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from clew.compat.importers import database as reading
from clew.compat.importers.database import Database
from clew.errors import Corrupt, InvalidInput, Unavailable
from tests.limits import processor_time


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a ?#%.db"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE said (id TEXT PRIMARY KEY, chat TEXT, words TEXT)")
        made.executemany("INSERT INTO said VALUES (?, ?, ?)", [("3", "a", "x"), ("1", "b", "y"), ("2", "a", "z")])
        made.execute("CREATE VIEW seen AS SELECT * FROM said")
    return path


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(Database(path, "a log of talks")) as database:
        yield database


def test_only_ordinary_tables_count(database: Database) -> None:
    assert database.has("said", "id", "words")
    assert [database.has("said", "nothing"), database.has("seen"), database.has("sqlite_schema")] == [False] * 3


def test_rows_are_found_by_a_column_in_the_order_in_which_they_were_inserted(database: Database) -> None:
    assert [row["id"] for row in database.matching("said", "chat", "a")] == ["3", "2"]
    assert database.matching("said", "chat", "nobody") == []


def test_nothing_is_written(path: Path, database: Database) -> None:
    before = path.read_bytes()
    with pytest.raises(Unavailable, match="readonly"):
        database.rows("DELETE FROM said")
    assert path.read_bytes() == before


def test_a_statement_that_does_not_fit_the_tables_says_that_the_file_is_damaged(database: Database) -> None:
    with pytest.raises(Corrupt, match="cannot be read as a log of talks: no such table: talks"):
        database.rows("SELECT * FROM talks")


def test_a_statement_that_takes_for_ever_is_ended(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "StepLimit", lambda path: lambda: True)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with processor_time(60), pytest.raises(Corrupt, match="far more steps"):
        database.rows(endless)


def test_a_database_that_another_process_writes_to_is_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_WAIT", 0.01)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="locked"):
            Database(path, "a log of talks")


@pytest.mark.parametrize("content", [b"This is a text. " * 100, b"SQLite format 3\0" + b"\xff" * 500])
def test_what_is_no_database_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(content)
    with pytest.raises(InvalidInput, match="is not a log of talks"):
        Database(tmp_path / "x.db", "a log of talks")
