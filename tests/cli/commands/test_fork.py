"""`clew fork`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.messages import plain_text
from tests.cli.command_line import Samples, clew, objects

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def _last_words(url: str, thread_id: str) -> tuple[int, str]:
    async with open_checkpointer(url) as store:
        state = await Thread.load(store, thread_id)
    return state.turns, plain_text(state.messages[-1])


async def test_a_fork_goes_on_from_the_end_of_that_turn_and_its_id_is_all_of_the_output(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    run = samples.clew("fork", "trip", "--turn", "3")
    assert (run.returncode, run.stdout) == (0, "trip-at-3\n")
    assert "agent.resume('what to do next', thread_id='trip-at-3')" in run.stderr
    assert await _last_words(samples.url, "trip-at-3") == (3, "The plan is in plan.md.")
    assert (await _last_words(samples.url, "trip"))[0] == 5


def test_a_fork_without_a_name_takes_the_next_one_that_is_free(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    assert [samples.clew("fork", "trip").stdout for _ in range(2)] == ["trip-at-5\n", "trip-at-5-2\n"]


def test_json_says_what_was_forked_where(tmp_path: Path) -> None:
    run = Samples(tmp_path).clew("fork", "trip", "--turn", "2", "--as", "by train", "--json")
    assert objects(run) == [{"thread_id": "by train", "parent": "trip", "turn": 2, "frame": None}]
    assert run.stderr == ""


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    run = Samples(tmp_path).clew("fork", "trip", "--as", "visa")
    assert (run.returncode, run.stdout) == (4, "")
    assert "'visa'" in run.stderr


def test_what_cannot_be_forked_is_said_in_a_line(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for arguments, code, said in [
        (("trip", "--turn", "9"), 2, "turns 0 to 5"),
        (("trip", "--frame", "99"), 2, "no frame 99"),
        (("trip", "--turn", "1", "--frame", "1"), 2, "Give one of them"),
        (("trip", "--turn", "two"), 2, "--turn"),
        (("tri",), 2, "trip-b"),
        (("nobody",), 3, "'nobody'"),
    ]:
        run = samples.clew("fork", *arguments)
        assert (run.returncode, run.stdout) == (code, ""), arguments
        assert said in run.stderr, arguments


def test_a_store_that_cannot_be_reached_is_told_from_one_that_has_no_such_thread() -> None:
    run = clew("fork", "trip", store="http://127.0.0.1:9")
    assert run.returncode == 5
    assert run.stderr.startswith("Error: ")


def test_a_damaged_thread_is_not_forked(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_frame("trip", 3)
    run = samples.clew("fork", "trip")
    assert run.returncode == 6
    assert "frame 3" in run.stderr
