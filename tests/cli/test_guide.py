"""What docs/command.md says of the command is what the command does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clew.cli.app import COMMANDS
from clew.cli.failures import EXIT_CODES
from tests.cli.command_line import Samples, objects

GUIDE = (Path(__file__).parents[2] / "docs" / "command.md").read_text()
KEYS = re.compile(r"^\| `clew ([^`]+)` \| ((?:those of|`).*) \|$", re.MULTILINE)


def test_the_guide_lists_every_command_by_its_group() -> None:
    rows = re.findall(r"^\| ([^|`]*) \| `clew (\w+)` \| (.+) \|$", GUIDE, re.MULTILINE)
    assert [(name, summary) for _, name, summary in rows] == [(name, one.summary) for name, one in COMMANDS.items()]
    assert [group for group, _, _ in rows if group.strip()] == list(
        dict.fromkeys(one.panel for one in COMMANDS.values())
    )


def test_the_guide_lists_every_exit_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", GUIDE, re.MULTILINE)
    assert [int(code) for code, _ in rows] == list(EXIT_CODES)
    assert all(meaning.startswith(EXIT_CODES[int(code)]) for code, meaning in rows)


@pytest.mark.slow
def test_the_keys_of_json_are_those_that_the_guide_lists(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    (of_ls,) = (re.findall(r"`(\w+)`", keys) for command, keys in KEYS.findall(GUIDE) if command == "ls")
    assert len(KEYS.findall(GUIDE)) == 22
    for command, listed in KEYS.findall(GUIDE):
        keys = re.findall(r"`(\w+)`", listed.partition(";")[0].removeprefix("those of `ls`"))
        run = samples.clew(*command.split(), "--json")
        assert run.returncode == 0, run.stderr
        for found in objects(run):
            assert list(found) == [*(of_ls if listed.startswith("those of") else []), *keys], command
