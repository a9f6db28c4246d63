"""`clew move`."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from tests.cli.command_line import Samples, clew, objects
from tests.cli.native_sessions import Machine
from tests.cli.workshop import Workshop
from tests.e2e.desk import desk
from tests.limits import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def test_a_session_is_moved_and_the_command_that_opens_it_is_all_that_is_on_stdout(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    key = machine.keep("claude_code", "Paint the door.")
    moved = machine.clew("move", key, "--to", "codex")
    assert moved.returncode == 0, moved.stderr
    command, fresh = moved.stdout.strip().rsplit(" ", 1)
    assert command == "codex resume"
    assert moved.stderr.startswith("Lost: that a result is an error: an output cannot say so but in its text\n")
    assert moved.stderr.endswith(f"It is codex session {fresh} now. Open it there:\n")
    listed = {each["id"] for each in objects(machine.clew("sessions", "--json"))}
    assert listed == {key, fresh}
    (told,) = objects(machine.clew("move", key[:8], "-p", "claude", "--to", "codex", "--cwd", str(tmp_path), "--json"))
    assert told["command"] == f"cd {shlex.quote(str(tmp_path))} && codex resume {told['id']}"
    assert told["losses"][0]["what"] == "that a result is an error"


def test_a_move_that_cannot_be_is_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    key = machine.keep("claude_code", "Paint the door.")
    assert machine.clew("move", key, "--to", "codx").returncode == 2
    home = machine.clew("move", key, "--to", "clew")
    assert (home.returncode, "clew adopt" in home.stderr) == (2, True)
    nobody = machine.clew("move", "nobody", "--to", "codex")
    assert (nobody.returncode, "To list the threads: clew ls" in nobody.stderr) == (3, True)
    machine.clew("adopt", key, "--as", key[:9] + "x")
    both = machine.clew("move", key[:9], "--to", "codex")
    assert (both.returncode, "--provider" in both.stderr) == (2, True)
    missing = machine.clew("move", key[:9] + "x", "--to", "codex", "--trust", env={"PATH": str(tmp_path)})
    assert (missing.returncode, "Install it: npm" in missing.stderr) == (1, True)


async def test_a_thread_is_moved_in_place_and_goes_on_over_there(tmp_path: Path) -> None:
    shop, samples = Workshop(tmp_path), Samples(tmp_path)
    (tmp_path / "home").mkdir()
    moved = samples.clew("move", "trip", "--to", "toy", "--json", "--trust", env=shop.env)
    (told,) = objects(moved)
    assert (told["provider"], told["command"], told["losses"][0]["what"]) == ("toy", "", "thinking")
    assert (tmp_path / "home" / "toy" / told["id"]).exists()
    async with open_checkpointer(samples.url) as store:
        state = await Thread.load(store, "trip")
    assert (state.limits["provider"], state.reason) == ("toy", "moved to toy")
    on = samples.clew("resume", "trip", "echo", "--trust", env=shop.env)
    assert "user=Add the tower." in on.stdout
    assert "goes on from turn 5 with toy" in on.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("real-clis")
def test_the_printed_command_opens_the_conversation_with_the_real_program(tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        machine = here.machine()
        folder = machine.cwd

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return clew(*arguments, store=here.url, cwd=folder, env=machine.env)

        options = ("--provider", "codex", "--model", machine.models["codex"], "--permissions", "full")
        first = run("run", "RUN echo at-codex", *options, "--thread", "t")
        assert first.stdout.startswith("It printed: "), first.stderr
        assert "at-codex" in first.stdout
        assert "● exec_command(" in first.stderr
        second = run("resume", "--last", "Say more.")
        assert (second.returncode, second.stdout) == (0, "Answer to: Say more.\n")
        moved = run("move", "t", "--to", "claude_code")
        assert moved.stdout.startswith("claude --resume "), moved.stderr
        opened = subprocess.run(
            [*shlex.split(moved.stdout), "-p", "Still there?"],
            cwd=folder,
            env=machine.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert opened.stdout == "Answer to: Still there?\n", opened.stderr
        assert any("at-codex" in str(message) for message in machine.asked[-1])
        third = run("resume", "t", "And here?")
        assert (third.returncode, third.stdout) == (0, "Answer to: And here?\n"), third.stderr
