"""`clew diff`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.command_line import Samples, objects, terminal


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("store"))


def test_messages_and_files_between_two_turns(samples: Samples) -> None:
    assert samples.clew("diff", "trip", "2", "4").stdout.splitlines() == [
        "+ assistant: The plan is in plan.md.",
        "+ user: Add the tower.",
        r'+ call: write_plan(text="# Paris\n\n1. The river\n2. The tower\n")',
        "+ result: written",
        "",
        "--- a/plan.md",
        "+++ b/plan.md",
        "@@ -1,3 +1,4 @@",
        " # Paris",
        " ",
        " 1. The river",
        "+2. The tower",
    ]


def test_backwards_is_the_same_the_other_way_round(samples: Samples) -> None:
    (found,) = objects(samples.clew("diff", "trip", "5", "3", "--json"))
    assert (found["from"], found["to"], found["added"]) == (5, 3, [])
    assert [message["role"] for message in found["removed"]] == ["user", "assistant", "tool", "assistant"]
    assert [(one["kind"], one["path"], one["mode"]) for one in found["files"]] == [("changed", "plan.md", "0644")]
    assert "-2. The tower\n" in found["files"][0]["text"]


def test_files_alone_are_a_patch_that_git_applies(samples: Samples, tmp_path: Path) -> None:
    patch = samples.clew("diff", "trip", "0", "--files").stdout
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "plan.md").read_text() == "# Paris\n\n1. The river\n2. The tower\n"


def test_what_is_the_same_is_said_on_the_standard_error(samples: Samples) -> None:
    run = samples.clew("diff", "trip", "3", "3")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "Nothing differs.\n")
    (messages,) = objects(samples.clew("diff", "visa", "0", "--messages", "--json"))
    assert ("files" in messages, len(messages["added"])) == (False, 2)


def test_colours_are_for_a_terminal(samples: Samples) -> None:
    with terminal("diff", "trip", "2", "4", store=samples.url) as shell:
        assert shell.end() == 0
    assert "\x1b[32m+2. The tower" in shell.shown


@pytest.mark.parametrize("turns", [("2", "9"), ("-1", "2"), ("two", "3"), ()])
def test_turns_that_are_not_there_are_2(samples: Samples, turns: tuple[str, ...]) -> None:
    run = samples.clew("diff", "trip", *turns)
    assert (run.returncode, run.stdout) == (2, "")
