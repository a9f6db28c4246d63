"""`clew rekey`, and how `clew ls` shows what is not sealed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import Samples, objects

pytestmark = pytest.mark.slow

KEY, NEW = "00" * 32, "11" * 32


def test_a_plain_store_gets_a_key_only_when_that_is_said_aloud(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    every = {row["thread_id"] for row in objects(samples.clew("ls", "--json", "--all", "--children"))}
    refused = samples.clew("ls", env={"CLEW_KEY": KEY})
    assert refused.returncode != 0
    assert "is not sealed with a key" in refused.stderr
    assert "clew rekey" in refused.stderr
    listed = samples.clew("ls", env={"CLEW_KEY": KEY, "CLEW_ALLOW_PLAIN": "1"})
    assert listed.stdout.count("(not sealed)") == len(listed.stdout.splitlines()) - 1
    rows = objects(samples.clew("ls", "--json", env={"CLEW_KEY": KEY, "CLEW_ALLOW_PLAIN": "1"}))
    assert {row["sealed"] for row in rows} == {False}
    assert samples.clew("rekey", env={"CLEW_KEY": KEY}).returncode != 0
    (done,) = objects(samples.clew("rekey", "--allow-plain", "--json", env={"CLEW_KEY": KEY}))
    assert (set(done["sealed"]), done["busy"]) == (every, [])
    sealed = samples.clew("ls", "--all", "--children", env={"CLEW_KEY": KEY})
    assert sealed.returncode == 0
    assert "(not sealed)" not in sealed.stdout
    rotated = samples.clew("rekey", env={"CLEW_KEY": f"{NEW},{KEY}"})
    assert set(rotated.stdout.splitlines()) == every
    assert samples.clew("verify", env={"CLEW_KEY": NEW}).returncode == 0


def test_rekey_without_a_key_says_how_to_give_one(tmp_path: Path) -> None:
    run = Samples(tmp_path).clew("rekey")
    assert run.returncode != 0
    assert "CLEW_KEY" in run.stderr
