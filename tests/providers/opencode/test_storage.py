from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew.errors import Corrupt, Unavailable
from clew.messages import user
from clew.providers.base import Conversation
from clew.providers.opencode import OpenCode
from tests.providers.opencode.kept import ANSWERED, COMPACTED, WITH_CHILD, change, database, machine

_NEW_MESSAGE = (
    "INSERT INTO message VALUES ('msg_{0}', '{1}', {2}, {2}, '{{\"role\":\"user\"}}')",
    "INSERT INTO part VALUES ('prt_{0}', 'msg_{0}', '{1}', {2}, {2}, '{{\"type\":\"text\",\"text\":\"{0}\"}}')",
)
_LATER = 1_794_764_999_000


def _say(opencode: OpenCode, key: str, words: str, at: int = _LATER) -> None:
    change(opencode, *(statement.format(words, key, at) for statement in _NEW_MESSAGE))


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_session_that_nobody_has_is_not_exported(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    assert opencode.export(opencode.new_key(), tmp_path / "kept") is False
    assert not (tmp_path / "kept").exists()


def test_an_export_of_an_unchanged_session_touches_nothing(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    kept = tmp_path / "kept"
    assert opencode.export(WITH_CHILD, kept)
    times = {path: path.stat().st_mtime_ns for path in kept.rglob("*")}
    assert opencode.export(WITH_CHILD, kept)
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*")} == times


def test_a_session_that_grows_only_adds_to_what_was_exported(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    kept = tmp_path / "kept"
    for number in range(40):
        _say(opencode, ANSWERED, f"{number:02d}" + "x" * 8000, _LATER + number)
    opencode.export(ANSWERED, kept)
    before = _files(kept)
    _say(opencode, ANSWERED, "one more", _LATER + 100)
    opencode.export(ANSWERED, kept)
    after = _files(kept)
    changed = {name for name in after if after[name] != before.get(name)} - {"session.json"}
    assert len(after) > 4
    assert changed == {max(name for name in after if name != "session.json")}
    assert after[changed.pop()].startswith(before.get(max(name for name in before if name != "session.json"), b""))


@pytest.mark.parametrize(
    "statement",
    [
        'UPDATE part SET data = \'{"type":"text","text":"other"}\', time_updated = {now} WHERE id = (SELECT min(id) '
        "FROM part WHERE session_id = '{key}')",
        "DELETE FROM message WHERE id = (SELECT min(id) FROM message WHERE session_id = '{key}')",
        "DELETE FROM part WHERE id = (SELECT min(id) FROM part WHERE session_id = '{key}')",
        "DELETE FROM message WHERE id = (SELECT max(id) FROM message WHERE session_id = '{key}')",
        "UPDATE session SET title = 'Another' WHERE id = '{key}'",
        "UPDATE todo SET status = 'completed'",
        "DELETE FROM session WHERE parent_id = '{key}'",
    ],
)
def test_an_export_over_an_older_one_is_the_same_as_a_fresh_one(tmp_path: Path, statement: str) -> None:
    opencode = machine(tmp_path)
    for number in range(30):
        _say(opencode, WITH_CHILD, f"{number:02d}" + "x" * 8000, _LATER + number)
    opencode.export(WITH_CHILD, tmp_path / "older")
    change(opencode, statement.replace("{key}", WITH_CHILD).replace("{now}", str(_LATER + 1000)))
    opencode.export(WITH_CHILD, tmp_path / "older")
    opencode.export(WITH_CHILD, tmp_path / "fresh")
    assert _files(tmp_path / "older") == _files(tmp_path / "fresh")


def test_an_export_that_was_cut_short_is_made_whole_by_the_next(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    opencode.export(ANSWERED, tmp_path / "kept")
    whole = _files(tmp_path / "kept")
    (tmp_path / "kept" / "session.json").unlink()
    (tmp_path / "kept" / ANSWERED / "000000.jsonl").write_bytes(b'{"torn')
    opencode.export(ANSWERED, tmp_path / "kept")
    assert _files(tmp_path / "kept") == whole


def test_an_installed_session_is_exported_as_it_was_but_for_its_place(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there", empty=True)
    here.export(WITH_CHILD, tmp_path / "kept")
    there.install_session(WITH_CHILD, tmp_path / "kept")
    there.export(WITH_CHILD, tmp_path / "again")
    first, second = _files(tmp_path / "kept"), _files(tmp_path / "again")
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]} == {"session.json"}
    assert [session.cwd for session in there.sessions()] == [os.path.realpath(there.place.cwd)]


def test_what_was_too_long_for_a_result_goes_with_the_session(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there", empty=True)
    outputs = database(here).with_name("tool-output")
    outputs.mkdir()
    (outputs / "tool_abc").write_text("all of it")
    (outputs / "tool_other").write_text("another session's")
    state = f'{{"type":"tool","state":{{"metadata":{{"outputPath":"{outputs}/tool_abc"}}}}}}'
    change(here, f"UPDATE part SET data = '{state}' WHERE session_id = '{ANSWERED}' AND data LIKE '%echo found%'")
    here.export(ANSWERED, tmp_path / "kept")
    there.install_session(ANSWERED, tmp_path / "kept")
    found = database(there).with_name("tool-output")
    assert _files(found) == {"tool_abc": b"all of it"}


def test_the_secret_of_a_shared_link_stays_on_the_machine(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    change(opencode, f"INSERT INTO session_share VALUES ('{ANSWERED}', 'x', 'a secret', 'https://example.com', 1, 1)")
    opencode.export(ANSWERED, tmp_path / "kept")
    assert not any(b"a secret" in data for data in _files(tmp_path / "kept").values())


def _rows(opencode: OpenCode, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(database(opencode))
    rows = connection.execute(query).fetchall()
    connection.close()
    return rows


def _share(opencode: OpenCode, key: str) -> None:
    change(
        opencode,
        f"INSERT INTO session_share VALUES ('{key}', 'x', 'a secret', 'https://example.com', 1, 1)",
        f"UPDATE session SET share_url = 'https://example.com' WHERE id = '{key}'",
    )


_SHARED = "SELECT session.id, url, share_url FROM session_share JOIN session ON session_id = session.id"


@pytest.mark.parametrize("said", [(), ("there",)])
def test_a_shared_session_that_is_replaced_stays_shared(tmp_path: Path, said: tuple[str, ...]) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there")
    _say(here, WITH_CHILD, "here")
    here.export(WITH_CHILD, tmp_path / "kept")
    _share(there, WITH_CHILD)
    for words in said:
        _say(there, WITH_CHILD, words)
    there.install_session(WITH_CHILD, tmp_path / "kept")
    assert there.standing(WITH_CHILD, tmp_path / "kept") == "same"
    assert _rows(there, _SHARED) == [(WITH_CHILD, "https://example.com", "https://example.com")]
    assert len(_rows(there, "SELECT 1 FROM session WHERE share_url IS NOT NULL")) == 1


def test_a_shared_session_that_is_here_alone_is_kept_aside_with_its_link(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there")
    (child,) = _rows(there, f"SELECT id FROM session WHERE parent_id = '{WITH_CHILD}'")[0]
    change(here, f"DELETE FROM session WHERE id = '{child}'")
    here.export(WITH_CHILD, tmp_path / "kept")
    _share(there, child)
    there.install_session(WITH_CHILD, tmp_path / "kept")
    assert there.standing(WITH_CHILD, tmp_path / "kept") == "same"
    ((aside, url, shown),) = _rows(there, _SHARED)
    assert aside != child
    assert url == shown == "https://example.com"


def _edit(folder: Path, edit: Callable[[Any], object]) -> None:
    manifest = json.loads((folder / "session.json").read_bytes())
    edit(manifest)
    (folder / "session.json").write_text(json.dumps(manifest))


def test_a_folder_reaches_no_table_but_those_of_its_session(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there", empty=True)
    here.export(ANSWERED, tmp_path / "kept")
    row = {"id": "evil", "worktree": "/", "sandboxes": "[]", "time_created": 1, "time_updated": 1}
    share = {"session_id": ANSWERED, "id": "x", "secret": "x", "url": "x", "time_created": 1, "time_updated": 1}
    _edit(tmp_path / "kept", lambda kept: kept["sessions"][0]["tables"].update(project=[row], session_share=[share]))
    there.install_session(ANSWERED, tmp_path / "kept")
    assert there.standing(ANSWERED, tmp_path / "kept") == "same"
    assert _rows(there, "SELECT id FROM project") == [("global",)]
    assert _rows(there, "SELECT 1 FROM session_share") == []


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        (
            '[{"permission":"*","pattern":"*","action":"allow"},{"permission":"x","pattern":"*","action":"deny"}]',
            "deny",
        ),
        ('[{"permission":"x","pattern":"*","action":"deny"}]', "deny"),
        ('{"*":"allow"}', ""),
        ("allow", ""),
        (None, ""),
    ],
)
def test_a_folder_brings_no_permission_that_would_go_before_those_of_the_run(
    tmp_path: Path, rules: str | None, left: str
) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there", empty=True)
    change(here, f"UPDATE session SET permission = {'NULL' if rules is None else repr(rules)}")
    here.export(ANSWERED, tmp_path / "kept")
    there.install_session(ANSWERED, tmp_path / "kept")
    ((permission,),) = _rows(there, "SELECT permission FROM session")
    assert [rule["action"] for rule in json.loads(permission or "[]")] == ([left] if left else [])


def _as_another(kept: Any) -> None:
    """A sub-agent's session that is the user's own, and none of this conversation's."""
    other = {**kept["sessions"][0], "id": COMPACTED, "pieces": 0}
    other["tables"] = {"session": [{**other["tables"]["session"][0], "id": COMPACTED}]}
    kept["sessions"].append(other)


def _with_anothers_row(kept: Any) -> None:
    todo = {"session_id": COMPACTED, "content": "x", "status": "x", "priority": "x", "position": 9}
    times = {"time_created": 1, "time_updated": 1}
    kept["sessions"][0]["tables"]["todo"] = [{**todo, **times}]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_as_another, f"{COMPACTED} is here already"),
        (_with_anothers_row, "a row of 'todo' that is not of"),
        (
            lambda kept: kept["sessions"].append({**kept["sessions"][0], "id": "../../evil"}),
            r"'\.\./\.\./evil' is not a session key",
        ),
    ],
)
def test_a_folder_reaches_no_session_but_its_own(tmp_path: Path, edit: Callable[[Any], object], reason: str) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there")
    _say(here, ANSWERED, "here")
    here.export(ANSWERED, tmp_path / "kept")
    _edit(tmp_path / "kept", edit)
    before = _rows(there, "SELECT * FROM part ORDER BY id")
    with pytest.raises(Corrupt, match=reason):
        there.install_session(ANSWERED, tmp_path / "kept")
    assert _rows(there, "SELECT * FROM part ORDER BY id") == before


def test_a_row_of_another_session_in_a_piece_is_damage_with_its_place(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    opencode.export(ANSWERED, tmp_path / "kept")
    piece = tmp_path / "kept" / ANSWERED / "000000.jsonl"
    lines = piece.read_bytes().splitlines(keepends=True)
    piece.write_bytes(lines[0] + lines[1].replace(ANSWERED.encode(), COMPACTED.encode()) + b"".join(lines[2:]))
    with pytest.raises(Corrupt, match=r"000000\.jsonl, line 2, is damaged: it is not a row of"):
        opencode.standing(ANSWERED, tmp_path / "kept")


def test_a_link_among_the_long_results_is_not_followed(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there", empty=True)
    here.export(ANSWERED, tmp_path / "kept")
    (tmp_path / "kept" / "tool-output").mkdir()
    (tmp_path / "kept" / "tool-output" / "tool_abc").symlink_to(database(here))
    there.install_session(ANSWERED, tmp_path / "kept")
    assert not database(there).with_name("tool-output").exists()


def test_a_session_with_a_damaged_row_travels_and_only_reading_it_tells_of_the_row(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there", empty=True)
    ((name,),) = _rows(here, f"SELECT max(id) FROM part WHERE session_id = '{ANSWERED}'")
    change(here, f"UPDATE part SET data = '{{\"type\":' WHERE id = '{name}'")
    here.export(ANSWERED, tmp_path / "kept")
    assert (here.standing(ANSWERED, tmp_path / "kept"), there.standing(ANSWERED, tmp_path / "kept")) == (
        "same",
        "absent",
    )
    there.install_session(ANSWERED, tmp_path / "kept")
    assert there.standing(ANSWERED, tmp_path / "kept") == "same"
    with pytest.raises(Corrupt, match=f"{name} of opencode's conversation {ANSWERED} is damaged"):
        there.read(tmp_path / "kept")


def test_a_copy_that_is_damaged_is_made_anew_by_the_next_export_of_what_changed(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    for number in range(30):
        _say(opencode, ANSWERED, f"{number:02d}" + "x" * 8000, _LATER + number)
    opencode.export(ANSWERED, tmp_path / "kept")
    for piece in (tmp_path / "kept" / ANSWERED).iterdir():
        piece.write_bytes(b"{" + piece.read_bytes())
    _say(opencode, ANSWERED, "one more", _LATER + 100)
    opencode.export(ANSWERED, tmp_path / "kept")
    opencode.export(ANSWERED, tmp_path / "fresh")
    assert _files(tmp_path / "kept") == _files(tmp_path / "fresh")


def test_standing_is_told_for_all_ways_in_which_two_can_differ(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there")
    kept = tmp_path / "kept"
    here.export(ANSWERED, kept)
    assert machine(tmp_path / "empty", empty=True).standing(ANSWERED, kept) == "absent"
    assert there.standing(ANSWERED, kept) == "same"
    _say(there, ANSWERED, "there")
    assert there.standing(ANSWERED, kept) == "ahead"
    _say(here, ANSWERED, "here")
    here.export(ANSWERED, kept)
    assert there.standing(ANSWERED, kept) == "apart"
    change(there, "DELETE FROM message WHERE id = 'msg_there'")
    assert there.standing(ANSWERED, kept) == "behind"


def test_a_part_that_went_on_on_one_side_makes_that_side_the_newer(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there")
    here.export(ANSWERED, tmp_path / "kept")
    one = f"WHERE session_id = '{ANSWERED}' AND data LIKE '%found%'"
    change(there, f'UPDATE part SET data = \'{{"type":"text"}}\', time_updated = {_LATER} {one}')
    assert there.standing(ANSWERED, tmp_path / "kept") == "ahead"
    there.export(ANSWERED, tmp_path / "kept")
    assert here.standing(ANSWERED, tmp_path / "kept") == "behind"


def test_what_is_only_here_is_kept_aside_under_another_name(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there")
    _say(here, WITH_CHILD, "here")
    here.export(WITH_CHILD, tmp_path / "kept")
    _say(there, WITH_CHILD, "there")
    there.export(WITH_CHILD, tmp_path / "mine")
    there.install_session(WITH_CHILD, tmp_path / "kept")

    assert there.standing(WITH_CHILD, tmp_path / "kept") == "same"
    (aside,) = [session for session in there.sessions() if session.title == "Looking around (kept aside by Clew)"]
    there.export(aside.key, tmp_path / "aside")
    mine, kept_aside = there.read(tmp_path / "mine").messages, there.read(tmp_path / "aside").messages
    assert len(kept_aside) == len(mine) == 5
    assert kept_aside[-1] == user("there")
    (child,) = [path.name for path in (tmp_path / "aside").glob("ses_*") if path.name != aside.key]
    assert f'task id="{child}"' in str(kept_aside[2])


def test_a_session_that_is_behind_is_brought_up_to_date_and_nothing_is_kept_aside(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there")
    _say(here, ANSWERED, "here")
    here.export(ANSWERED, tmp_path / "kept")
    count = len(list(there.sessions()))
    there.install_session(ANSWERED, tmp_path / "kept")
    assert there.standing(ANSWERED, tmp_path / "kept") == "same"
    assert len(list(there.sessions())) == count


def test_an_installed_session_belongs_to_the_project_of_its_repository(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there", empty=True)
    here.export(ANSWERED, tmp_path / "kept")
    root = os.path.realpath(there.place.cwd)
    (there.place.cwd / ".git").mkdir()
    change(
        there, f"INSERT INTO project VALUES ('abc', '{root}', 'git', NULL, NULL, NULL, NULL, 1, 1, NULL, '[]', NULL)"
    )
    there.install_session(ANSWERED, tmp_path / "kept")
    connection = sqlite3.connect(database(there))
    assert connection.execute("SELECT project_id, directory, path FROM session").fetchall() == [("abc", root, "")]
    connection.close()


def test_rows_of_another_version_are_installed_without_the_columns_that_are_not_there(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there", empty=True)
    change(here, "ALTER TABLE session ADD COLUMN mood text DEFAULT 'fine'", "CREATE TABLE mood (session_id text)")
    change(here, f"INSERT INTO mood VALUES ('{ANSWERED}')")
    here.export(ANSWERED, tmp_path / "kept")
    there.install_session(ANSWERED, tmp_path / "kept")
    assert there.standing(ANSWERED, tmp_path / "kept") == "same"


def test_a_session_that_the_database_does_not_take_leaves_it_as_it_was(tmp_path: Path) -> None:
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there", empty=True)
    here.export(ANSWERED, tmp_path / "kept")
    path = tmp_path / "kept" / ANSWERED / "000000.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(Corrupt, match="does not take this conversation"):
        there.install_session(ANSWERED, tmp_path / "kept")
    assert list(there.sessions()) == []


def test_a_conversation_installed_under_another_key_stands_beside_the_one_it_was_taken_from(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    opencode.export(ANSWERED, tmp_path / "kept")
    key = opencode.new_key()
    opencode.install_session(key, tmp_path / "kept")
    assert opencode.standing(ANSWERED, tmp_path / "kept") == "same"
    assert opencode.export(key, tmp_path / "copy")
    assert opencode.read(tmp_path / "copy").messages == opencode.read(tmp_path / "kept").messages


@pytest.mark.parametrize("damage", ["none", "no manifest", "manifest", "line", "piece"])
def test_a_damaged_folder_is_told_with_the_place(tmp_path: Path, damage: str) -> None:
    opencode = machine(tmp_path)
    kept = tmp_path / "kept"
    opencode.export(ANSWERED, kept)
    piece = kept / ANSWERED / "000000.jsonl"
    if damage == "none":
        assert opencode.read(kept).messages
        return
    if damage == "no manifest":
        (kept / "session.json").unlink()
    elif damage == "manifest":
        (kept / "session.json").write_text("{")
    elif damage == "line":
        piece.write_bytes(piece.read_bytes().replace(b'{"part"', b'{"part', 1))
    else:
        piece.unlink()
    named = {"no manifest": "session.json", "manifest": "session.json", "line": "line 2", "piece": "000000.jsonl"}
    with pytest.raises(Corrupt, match=named[damage]):
        opencode.read(kept)


def test_a_database_of_an_unknown_form_is_told_with_its_version(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    change(opencode, "ALTER TABLE part RENAME COLUMN data TO body")
    with pytest.raises(Corrupt, match=r"table 'part' has no column 'data'. It was written by opencode 1.18.33"):
        opencode.export(ANSWERED, tmp_path / "kept")


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    database(opencode).write_bytes(b"not a database" * 1000)
    database(opencode).with_name("opencode.db-wal").unlink(missing_ok=True)
    with pytest.raises(Corrupt, match=r"opencode\.db cannot be read"):
        opencode.find(ANSWERED)


def test_a_database_that_somebody_writes_to_is_read_and_is_unavailable_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.providers.opencode.database._WAIT", 0.05)
    opencode = machine(tmp_path)
    opencode.write(Conversation(messages=(user("hi"),)), key := opencode.new_key(), tmp_path / "kept")
    writer = sqlite3.connect(database(opencode), isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert opencode.find(ANSWERED) == ANSWERED
    with pytest.raises(Unavailable, match="locked"):
        opencode.install_session(key, tmp_path / "kept")
    writer.close()


def test_sessions_that_only_an_older_opencode_keeps_are_told_of(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    database(opencode).unlink()
    old = database(opencode).parent / "storage" / "session" / "global"
    old.mkdir(parents=True)
    with pytest.raises(Unavailable, match="storage/session"):
        list(opencode.sessions())


def test_where_opencode_never_ran_there_is_nothing(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    database(opencode).unlink()
    opencode.write(Conversation(messages=(user("hi"),)), key := opencode.new_key(), tmp_path / "kept")
    assert list(opencode.sessions()) == []
    assert opencode.find(key) is None
    assert opencode.export(key, tmp_path / "export") is False
    assert opencode.standing(key, tmp_path / "kept") == "absent"
    with pytest.raises(Unavailable, match="npm install -g opencode-ai"):
        opencode.install_session(key, tmp_path / "kept")
