"""`clew verify`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from tests.cli.command_line import Samples, objects, terminal
from tests.cli.workshop import Workshop

pytestmark = pytest.mark.slow


def _turns(url: str, thread_id: str) -> int:
    async def look() -> int:
        async with open_checkpointer(url) as store:
            return (await Thread.load(store, thread_id)).turns

    return asyncio.run(look())


def test_a_whole_store_is_sound(tmp_path: Path) -> None:
    run = Samples(tmp_path).clew("verify")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "5 threads, all sound.\n")


def test_each_problem_is_a_line_and_the_end_is_6(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_frame("trip", 6)
    run = samples.clew("verify")
    assert run.returncode == 6
    assert run.stdout.startswith("trip: frame 6: ")
    assert "1 of 5 threads damaged" in run.stderr
    assert samples.clew("verify", "visa", "trip-b").returncode == 0


def test_json_has_an_object_for_each_thread(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_frame("trip", 6)
    run = samples.clew("verify", "trip", "visa", "--json")
    trip, visa = objects(run)
    assert (trip["thread_id"], trip["sound"], trip["readable"], trip["problems"][0]["frame"]) == ("trip", False, 6, 6)
    assert (visa["thread_id"], visa["sound"], visa["problems"]) == ("visa", True, [])
    assert (run.returncode, run.stderr) == (6, "")


def test_a_repair_saves_what_is_whole_and_leaves_the_damaged_one(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_frame("trip", 16)
    refused = samples.clew("verify", "trip", "--repair")
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    run = samples.clew("verify", "trip", "--repair", "--yes")
    assert run.returncode == 6
    assert "trip: saved as trip-repaired" in run.stdout
    assert 0 < _turns(samples.url, "trip-repaired") < 5
    assert samples.clew("verify", "trip-repaired").returncode == 0
    assert samples.clew("verify", "trip").returncode == 6


def test_at_a_terminal_a_no_saves_nothing(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_frame("trip", 16)
    with terminal("verify", "--repair", store=samples.url) as shell:
        shell.wait_for("as trip-repaired? [y/N]")
        shell.type("n\n")
        assert shell.end() == 6
    assert samples.clew("fork", "trip-repaired").returncode == 3


def test_what_is_wrong_goes_to_the_file_that_was_asked_for_and_the_progress_to_the_terminal(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_frame("trip", 16)
    with open(tmp_path / "problems", "wb") as file, terminal("verify", store=samples.url, output=file) as shell:
        assert shell.end() == 6
    assert (tmp_path / "problems").read_text().startswith("trip: frame 16: ")
    assert "1 of 5 threads damaged" in shell.shown


def test_a_thread_that_cannot_even_be_listed_is_told_too(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_head("visa")
    run = samples.clew("verify")
    assert "'visa'" in run.stdout
    assert (run.returncode, run.stderr) == (6, "4 threads, all sound; not all of the store can be listed.\n")
    named = samples.clew("verify", "visa", "--repair", "--yes")
    assert (named.returncode, "saved as visa-repaired" in named.stdout) == (6, True)


def test_a_file_that_is_no_store_and_an_unknown_id_are_told_apart(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    assert samples.clew("verify", "nobody").returncode == 3
    (tmp_path / "no.db").write_text("this is no database, though it is long enough to be taken for one. " * 20)
    run = samples.clew("verify", "--store", f"sqlite:///{tmp_path / 'no.db'}")
    assert run.returncode == 6
    assert "no.db" in run.stdout


def test_a_thread_whose_key_is_missing_is_not_called_damaged_and_is_left_alone(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    key = {"CLEW_KEY": "ab" * 32}
    shop.clew("run", "Hello.", "--model", shop.script("talk", "Hello.", "Bye."), "--thread", "t", env=key)
    told = "1 of 1 thread cannot be read without a key: give it in the environment, as CLEW_KEY.\n"
    for arguments in (("verify",), ("verify", "t"), ("verify", "--repair", "--yes")):
        verified = shop.clew(*arguments)
        assert (verified.returncode, verified.stderr) == (6, told)
    refused = shop.clew("show", "t")
    assert refused.returncode == 6
    assert refused.stderr.endswith("Give the key in the environment, as CLEW_KEY.\n")
    assert [thread["thread_id"] for thread in objects(shop.clew("ls", "--json"))] == ["t"]
    assert shop.clew("verify", env=key).stderr == "1 thread, all sound.\n"
