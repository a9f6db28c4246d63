from __future__ import annotations

from pathlib import Path

import pytest

from clew.errors import InvalidInput
from clew.providers.base import Job
from clew.providers.events import Finished
from tests.providers.opencode.kept import ANSWERED, FIXTURES, WITH_CHILD, change, database, machine


def test_sessions_are_listed_newest_first_and_without_those_of_sub_agents(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    found = list(opencode.sessions())
    assert len(found) == 6
    assert [session.updated_at for session in found] == sorted((s.updated_at for s in found), reverse=True)  # type: ignore[type-var]
    answered = next(session for session in found if session.key == ANSWERED)
    assert (answered.provider, answered.path) == ("opencode", database(opencode))
    assert (answered.cwd, answered.title, answered.exchanges) == ("/home/ada/project", "Looking around", 2)


def test_a_session_is_found_by_its_key_and_by_an_unambiguous_part_of_it(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    assert opencode.find(ANSWERED) == ANSWERED
    assert opencode.find(ANSWERED[:18]) == ANSWERED
    assert opencode.find("RZXCXZ1oOp") == ANSWERED
    assert opencode.find(opencode.new_key()) is None
    assert opencode.find("/home/ada") is None
    assert opencode.find("ses_") is None
    with pytest.raises(InvalidInput, match="ses_e1fb1a8b"):
        opencode.find("ses_e1fb1a8b")


def test_an_answer_is_told_with_the_model_that_gave_it(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    for model, named in [("", "messages/claude-sonnet-4-5"), ("mine/model", "mine/model")]:
        reader = opencode.reader(Job(prompt="Look around.", key=ANSWERED, model=model))
        for line in (FIXTURES / "answer.jsonl").read_bytes().splitlines():
            list(reader.read(line))
        (finished,) = reader.end(0, "")
        assert isinstance(finished, Finished)
        assert finished.model == named


def test_parts_of_a_name_are_taken_by_the_letter(tmp_path: Path) -> None:
    assert machine(tmp_path).find("%%%%%%%%") is None


def test_a_session_that_is_put_away_is_found(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    change(opencode, f"UPDATE session SET time_archived = 1 WHERE id = '{WITH_CHILD}'")
    assert opencode.find(WITH_CHILD) == WITH_CHILD
