"""What other programs read stays as it was: the JSON of the command, the HTTP protocol and handles, of an old store."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clew.agent.handles import write_handle
from tests.golden.observed import observe

FOLDER = Path(__file__).parent
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def observed() -> dict[str, Any]:
    return observe(FOLDER / "store")


@pytest.mark.slow
@pytest.mark.parametrize("command", EXPECTED["commands"])
def test_the_command_prints_the_same_json_of_an_old_store(observed: dict[str, Any], command: str) -> None:
    assert observed["commands"][command] == EXPECTED["commands"][command]


@pytest.mark.slow
@pytest.mark.parametrize("request_line", EXPECTED["http"])
def test_the_service_gives_the_same_answers_from_an_old_store(observed: dict[str, Any], request_line: str) -> None:
    assert observed["http"][request_line] == EXPECTED["http"][request_line]


def test_handles_are_written_as_before() -> None:
    assert write_handle("claude_code", "s-1", "k-1") == (
        '{"version":1,"provider":"claude_code","session_id":"s-1","resume_key":"k-1"}'
    )
    assert write_handle(
        "codex",
        "s-2",
        "k-2",
        cwd="/home/ada/work",
        store="sqlite:////home/ada/clew.db",
        expires=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
        key="a key",
    ) == (
        '{"version":1,"provider":"codex","session_id":"s-2","resume_key":"k-2","cwd":"/home/ada/work",'
        '"store":"sqlite:////home/ada/clew.db","expires":"2030-01-02T03:04:05Z",'
        '"signature":"c8b7de3d52a7e2a3d908ffd9409c56d93d2901e0b05ef2fa78501d8d4c45887c"}'
    )
