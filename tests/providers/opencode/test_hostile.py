"""A database of opencode that somebody prepared: nothing in it runs, and reading it does not take long."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.errors import Corrupt
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
    with pytest.raises(Corrupt, match="trigger 'theirs'"):
        there.install_session(ANSWERED, tmp_path / "folder")
    assert list(there.sessions()) == []


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
