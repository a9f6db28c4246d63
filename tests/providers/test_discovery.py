"""The conversations that coding agents keep on this machine."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from clew.errors import InvalidInput
from clew.messages import assistant, user
from clew.providers.base import Conversation, Place
from clew.providers.discovery import discover
from clew.providers.registry import find_provider

START = datetime(2026, 3, 1, tzinfo=UTC)


def place_in(root: Path, folder: str = "work") -> Place:
    cwd = root / folder
    cwd.mkdir(parents=True, exist_ok=True)
    return Place(cwd, {"HOME": str(root / "home"), "PATH": os.environ["PATH"]})


def keep(place: Place, provider: str, title: str, minutes: int, scratch: Path) -> str:
    """A session as the provider keeps it, last changed so many minutes after the start."""
    found = find_provider(provider)(place)
    moment = START + timedelta(minutes=minutes)
    conversation = Conversation(
        messages=(user(title), assistant("Yes.")), cwd=str(place.cwd), created_at=moment, updated_at=moment
    )
    key, folder = found.new_key(), scratch / f"{provider}-{minutes}"
    folder.mkdir()
    found.write(conversation, key, folder)
    found.install_session(key, folder)
    (path,) = [session.path for session in found.sessions() if session.key == key]
    os.utime(path, (moment.timestamp(), moment.timestamp()))
    return key


def test_sessions_of_all_providers_are_listed_newest_first(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    first = keep(place, "codex", "first", 1, tmp_path)
    third = keep(place, "codex", "third", 3, tmp_path)
    second = keep(place, "claude_code", "second", 2, tmp_path)
    found = discover(["claude_code", "codex"], place=place)
    assert [(session.key, session.provider) for session in found] == [
        (third, "codex"),
        (second, "claude_code"),
        (first, "codex"),
    ]
    assert found.problems == ()
    assert [session.key for session in discover("codex", place=place)] == [third, first]


def test_with_a_folder_only_its_own_are_listed(tmp_path: Path) -> None:
    here, there = place_in(tmp_path), place_in(tmp_path, "other")
    mine = keep(here, "claude_code", "mine", 1, tmp_path)
    keep(there, "codex", "theirs", 2, tmp_path)
    (tmp_path / "link").symlink_to(here.cwd)
    for cwd in (here.cwd, tmp_path / "link", f"{here.cwd}/."):
        assert [session.key for session in discover(["claude_code", "codex"], cwd=cwd, place=there)] == [mine]


def test_a_machine_without_any_has_none_and_no_problems(tmp_path: Path) -> None:
    found = discover(place=place_in(tmp_path))
    assert (len(found), found.problems) == (0, ())


def test_a_damaged_store_is_told_and_hides_nobody_elses_sessions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = place_in(tmp_path)
    kept = keep(place, "claude_code", "kept", 1, tmp_path)
    database = place.home / ".local/share/opencode/opencode.db"
    database.parent.mkdir(parents=True)
    database.write_bytes(b"no database at all" * 500)
    with caplog.at_level(logging.INFO, "clew.providers"):
        found = discover(place=place)
    assert [session.key for session in found] == [kept]
    assert [problem.provider for problem in found.problems] == ["opencode"]
    assert found.problems[0].reason in caplog.text


def test_a_provider_that_is_none_is_no_problem_but_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no provider 'codx'"):
        discover(["codx"], place=place_in(tmp_path))
