"""What all commands have in common that only look: they change nothing, and fail in ways that can be told apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

from tests.cli.command_line import Samples, clew, environment

pytestmark = pytest.mark.slow

ON_A_STORE = [("ls",), ("stats",), ("search", "paris")]
ON_A_THREAD = [("show",), ("tail",), ("diff", "1", "2"), ("files",), ("why",)]


def _on(command: tuple[str, ...], thread: str) -> list[str]:
    return [command[0], thread, *command[1:]]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("store"))


@pytest.mark.slow
def test_looking_changes_nothing(samples: Samples) -> None:
    samples.clew("ls")  # opens the database once, so that what the killed process left in its journal is in the file
    before = blake3(samples.database.read_bytes()).hexdigest()
    for command in [*(list(one) for one in ON_A_STORE), *(_on(one, "trip") for one in ON_A_THREAD)]:
        assert samples.clew(*command).returncode == 0, command
    assert blake3(samples.database.read_bytes()).hexdigest() == before


@pytest.mark.parametrize("command", ON_A_THREAD, ids=lambda command: command[0])
def test_a_thread_that_is_not_there_is_3_and_one_of_several_that_may_be_meant_is_2(
    samples: Samples, command: tuple[str, ...]
) -> None:
    absent = samples.clew(*_on(command, "nobody"))
    unclear = samples.clew(*_on(command, "tri"))
    assert (absent.returncode, absent.stdout, "nobody" in absent.stderr) == (3, "", True)
    assert (unclear.returncode, unclear.stdout) == (2, "")
    assert "trip, " in unclear.stderr or ", trip" in unclear.stderr


@pytest.mark.parametrize("command", [*ON_A_STORE, ("show", "trip")], ids=lambda command: command[0])
def test_a_store_that_is_no_store_is_6_and_one_that_is_away_is_5(tmp_path: Path, command: tuple[str, ...]) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("This was never a database, and it is long enough to show.\n" * 20)
    assert clew(*command, "--store", f"sqlite:///{broken}").returncode == 6
    away = clew(*command, "--store", "http://127.0.0.1:1")
    assert (away.returncode, away.stdout) == (5, "")
    assert away.stderr.startswith("Error: http://127.0.0.1:1: cannot be reached")


def test_a_damaged_log_is_6_for_whoever_reads_it(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_frame("trip", 2)
    for command in ON_A_THREAD:
        run = samples.clew(*_on(command, "trip"))
        assert run.returncode == 6, command
        assert "frame 2" in run.stderr


@pytest.mark.parametrize("command", [("ls",), ("ls", "--json"), ("show", "trip"), ("search", "paris"), ("stats",)])
def test_a_reader_that_has_seen_enough_is_no_error(samples: Samples, command: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "clew", *command],
        env=environment(samples.url, None),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (0, "")
