"""`clew rewind`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.log import Checkpoint
from tests.cli.command_line import Samples, objects, terminal
from tests.cli.workshop import Workshop

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FIRST, SECOND = "# Paris\n\n1. The river\n", "# Paris\n\n1. The river\n2. The tower\n"


async def _state(url: str, thread_id: str) -> Checkpoint:
    async with open_checkpointer(url) as store:
        return await Thread.load(store, thread_id)


def _commands(shown: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in shown.splitlines() if line.startswith("  clew ")]


async def test_the_conversation_and_the_files_go_back_to_the_same_turn_and_can_be_brought_back(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    (samples.files / "mine.txt").write_text("not of any turn")
    before = await _state(samples.url, "trip")
    run = samples.clew("rewind", "trip", "--turn", "2", "--workspace", "trip", "--yes")
    assert run.returncode == 0
    assert "turn 2 of 5" in run.stdout
    assert (samples.files / "plan.md").read_text() == FIRST
    assert not (samples.files / "mine.txt").exists()
    back = await _state(samples.url, "trip")
    assert (back.turns, back.status, back.cost_usd) == (2, "interrupted", before.cost_usd)

    fork, files = _commands(run.stderr)
    assert samples.clew(*fork).stdout == "trip-at-5\n"
    assert (await _state(samples.url, "trip-at-5")).messages == before.messages
    assert samples.clew(*files, "--yes").returncode == 0
    assert (samples.files / "plan.md").read_text() == SECOND
    assert (samples.files / "mine.txt").read_text() == "not of any turn"
    assert (await _state(samples.url, "trip")).turns == 2


async def test_the_conversation_alone_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    run = samples.clew("rewind", "trip", "--turn", "2", "--conversation", "--json")
    (done,) = objects(run)
    assert (done["thread_id"], done["turn"], done["turns_before"], done["files"]) == ("trip", 2, 5, None)
    assert (samples.files / "plan.md").read_text() == SECOND
    assert (await _state(samples.url, "trip")).turns == 2


async def test_the_files_alone_leave_the_conversation_and_its_status_as_they_are(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    run = samples.clew("rewind", "trip", "--turn", "2", "--files", "--workspace", "elsewhere", "--json")
    (done,) = objects(run)
    assert (done["conversation"], done["files"]["written"], done["files"]["before"]) == (False, 1, None)
    assert (samples.folder / "elsewhere" / "plan.md").read_text() == FIRST
    now = await _state(samples.url, "trip")
    assert (now.turns, now.status) == (5, "done")


def test_at_a_terminal_the_changes_are_shown_and_only_a_yes_makes_them(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    with terminal(
        "rewind", "trip", "--turn", "2", "--workspace", "trip", store=samples.url, cwd=samples.folder
    ) as shell:
        shell.wait_for("[y/N]")
        assert "changed plan.md" in shell.shown
        shell.type("n\n")
        assert shell.end() == 1
    assert (samples.files / "plan.md").read_text() == SECOND


def test_a_thread_without_files_needs_no_folder(tmp_path: Path) -> None:
    run = Samples(tmp_path).clew("rewind", "visa", "--turn", "0")
    assert (run.returncode, run.stdout.splitlines()[0]) == (0, "visa: back at the end of turn 0 of 1")


async def test_a_thread_that_somebody_works_on_is_left_alone(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    async with open_checkpointer(samples.url) as store, Thread.open(store, "trip", label="test"):
        run = samples.clew("rewind", "trip", "--turn", "2", "--workspace", "trip", "--yes")
    assert run.returncode == 4
    assert "clew unlock trip --force" in run.stderr
    assert (samples.files / "plan.md").read_text() == SECOND


async def test_files_that_cannot_be_restored_leave_the_conversation_where_it_is(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    (samples.folder / "file").write_text("")
    run = samples.clew("rewind", "trip", "--turn", "2", "--workspace", "file", "--yes")
    assert run.returncode == 2
    assert (await _state(samples.url, "trip")).turns == 5


def test_what_cannot_be_rewound_is_said_in_a_line(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for arguments, code, said in [
        (("trip",), 2, "--turn N"),
        (("trip", "--turn", "9"), 2, "turns 0 to 5"),
        (("trip", "--turn", "2"), 2, "--workspace DIR"),
        (("trip", "--turn", "2", "--workspace", "trip"), 2, "--yes"),
        (("trip", "--turn", "2", "--files", "--conversation"), 2, "Leave out both"),
        (("trip", "--frame", "2"), 2, "--files"),
        (("visa", "--turn", "1", "--files"), 2, "no files on record"),
        (("nobody", "--turn", "1"), 3, "'nobody'"),
    ]:
        run = samples.clew("rewind", *arguments)
        assert (run.returncode, run.stdout) == (code, ""), arguments
        assert said in run.stderr, arguments


def test_files_of_a_run_go_back_in_the_folder_that_the_run_was_given(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    writes = [{"call": {"name": "write_file", "arguments": {"path": f"{n}.txt", "content": n}}} for n in "ab"]
    shop.clew("run", "Write.", "--model", shop.script("w", *writes, "Done."), "--workspace", "plan", "--thread", "t")
    run = shop.clew("rewind", "t", "--turn", "1", "--yes", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert [path.name for path in (shop.folder / "plan").iterdir()] == ["a.txt"]
