"""`clew prune`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import Samples, objects, terminal

pytestmark = pytest.mark.slow


def test_a_dry_run_says_what_would_go_and_deletes_nothing(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for _ in range(2):
        run = samples.clew("prune", "--status", "failed", "--status", "waiting", "--dry-run")
        assert (run.returncode, sorted(run.stdout.split())) == (0, ["old", "visa"])
    assert "2 threads would be deleted; 0 stay." in run.stderr


def test_with_yes_what_meets_every_condition_goes(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    (pruned,) = objects(samples.clew("prune", "--prefix", "trip", "--keep", "1", "--yes", "--json"))
    assert (pruned["deleted"], pruned["kept"], pruned["busy"], pruned["dry_run"]) == (["trip"], 1, [], False)
    (again,) = objects(samples.clew("prune", "--older-than", "30d", "--yes", "--json"))
    assert (again["deleted"], again["kept"]) == ([], 4)


def test_at_a_terminal_what_would_go_is_listed_before_the_question(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    with terminal("prune", "--status", "failed", store=samples.url) as shell:
        shell.wait_for("[y/N]")
        assert "old\n" in shell.shown
        shell.type("y\n")
        assert shell.end() == 0
    assert "1 thread deleted" in shell.shown
    assert samples.clew("prune", "--status", "failed").stdout == ""


def test_what_cannot_be_pruned_is_said_in_a_line(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for arguments, said in [
        ((), "--older-than"),
        (("--status", "failed"), "--yes"),
        (("--status", "dead"), "'dead' is not a status"),
        (("--older-than", "3 moons"), "30d"),
        (("--keep", "-1"), "0 or more"),
        (("--tag", "env"), "name=value"),
    ]:
        run = samples.clew("prune", *arguments)
        assert (run.returncode, run.stdout) == (2, ""), arguments
        assert said in run.stderr, arguments


def test_a_store_with_a_thread_that_cannot_be_listed_loses_nothing(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_head("trip")
    assert samples.clew("prune", "--keep", "0", "--yes").returncode == 6
    assert samples.clew("fork", "visa").returncode == 0
