"""`clew copy`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from tests.cli.command_line import Samples, clew, objects

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_all_threads_are_copied_and_read_the_same(tmp_path: Path) -> None:
    samples, there = Samples(tmp_path), f"file://{tmp_path / 'there'}"
    run = clew("copy", samples.url, there)
    assert run.returncode == 0
    assert {*run.stdout.splitlines()} == {f"{name}: copied" for name in ("old", "report", "trip", "trip-b", "visa")}
    assert clew("verify", store=there).returncode == 0
    async with open_checkpointer(samples.url) as here, open_checkpointer(there) as copies:
        for name in ("trip", "report"):
            assert await Thread.load(copies, name) == await Thread.load(here, name)


def test_what_is_there_already_is_left_alone_and_what_has_grown_is_brought_up_to_date(tmp_path: Path) -> None:
    samples, there = Samples(tmp_path), f"file://{tmp_path / 'there'}"
    (first,) = objects(clew("copy", samples.url, there, "trip", "visa", "--json"))
    assert (first["copied"], first["skipped"], first["failed"]) == (["trip", "visa"], [], {})
    samples.clew("rewind", "trip", "--turn", "2", "--conversation")
    (again,) = objects(clew("copy", samples.url, there, "trip", "visa", "--verify", "--json"))
    assert (again["copied"], again["skipped"], again["verified"]) == (["trip"], ["visa"], ["trip", "visa"])


def test_a_thread_that_cannot_be_copied_is_told_and_the_others_are(tmp_path: Path) -> None:
    samples, there = Samples(tmp_path), f"file://{tmp_path / 'there'}"
    samples.damage_frame("trip", 6)
    run = clew("copy", samples.url, there, "--json")
    (done,) = objects(run)
    assert (run.returncode, [*done["failed"]], len(done["copied"])) == (1, ["trip"], 4)
    assert clew("copy", samples.url, there, "trip").returncode == 6


def test_another_thread_of_that_id_is_never_written_over(tmp_path: Path) -> None:
    samples, other = Samples(tmp_path), Samples(tmp_path / "other")
    run = clew("copy", samples.url, other.url, "trip")
    assert (run.returncode, run.stdout) == (0, "")  # the very same one
    other.clew("rewind", "trip", "--turn", "1", "--conversation")
    samples.clew("rewind", "trip", "--turn", "2", "--conversation")
    assert clew("copy", samples.url, other.url, "trip").returncode == 4


def test_what_cannot_be_copied_is_said_in_a_line(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for arguments, code, said in [
        ((samples.url, "somewhere"), 2, "somewhere"),
        ((samples.url, "nosuch://x"), 2, "nosuch"),
        ((samples.url,), 2, "DST"),
        ((samples.url, f"file://{tmp_path / 'there'}", "nobody"), 3, "'nobody'"),
        ((samples.url, "http://127.0.0.1:9", "trip"), 5, "127.0.0.1"),
    ]:
        run = clew("copy", *arguments)
        assert (run.returncode, run.stdout) == (code, ""), arguments
        assert said in run.stderr, arguments
