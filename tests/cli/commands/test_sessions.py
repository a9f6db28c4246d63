"""`clew sessions`, `clew adopt` and `clew move`."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clew import Thread, open_checkpointer
from clew.messages import Text, ToolCall, ToolResult, assistant, plain_text, tool, user
from clew.providers.base import Conversation, Place
from clew.providers.registry import find_provider
from tests.cli.command_line import Samples, clew, objects
from tests.cli.workshop import Workshop
from tests.e2e.desk import desk

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Machine:
    """A home with sessions in it, and a store."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "work"
        self.cwd.mkdir()
        self.url = f"sqlite:///{root}/clew.db"
        self._root = root
        self.env = {"HOME": str(root / "home"), "CODEX_HOME": "", "CLAUDE_CONFIG_DIR": "", "XDG_DATA_HOME": ""}

    def keep(self, provider: str, title: str, cwd: Path | None = None, key: str = "") -> str:
        """A session as the provider keeps it, last changed just now; its key."""
        place = Place(cwd or self.cwd, {**self.env, "PATH": os.environ["PATH"]})
        found = find_provider(provider)(place)
        failed = tool(ToolResult("c1", (Text("no"),), is_error=True))
        messages = (user(title), assistant(ToolCall("c1", "Bash", {"command": "ls"})), failed)
        key, folder = key or found.new_key(), self._root / f"{provider}-{title}"
        folder.mkdir()
        found.write(Conversation(messages=messages, cwd=str(place.cwd)), key, folder)
        found.install_session(key, folder)
        return key

    def clew(self, *arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **how.pop("env", {})}
        return clew(*arguments, store=self.url, cwd=self.cwd, env=env, **how)


def test_sessions_are_listed_newest_first_as_asked(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    old = machine.keep("codex", "Mend the \x1b[31mroof.")
    new = machine.keep("claude_code", "Paint the door.", other)
    for key, minutes in ((old, 10), (new, 5)):
        (path,) = [path for path in (tmp_path / "home").rglob(f"*{key}*.jsonl") if path.is_file()]
        os.utime(path, (path.stat().st_mtime - 60 * minutes,) * 2)
    table = machine.clew("sessions").stdout.splitlines()
    assert table[0].split() == ["PROVIDER", "ID", "TITLE", "TURNS", "CWD", "AGE", "SIZE"]
    assert table[1].split()[:5] == ["claude_code", new, "Paint", "the", "door."]
    assert table[2].startswith(f"codex        {old}  Mend the roof.")
    assert " 10m " in table[2]
    (mine,) = objects(machine.clew("sessions", "--cwd", ".", "--json"))
    assert (mine["provider"], mine["id"], mine["turns"], mine["cwd"]) == ("codex", old, 1, str(machine.cwd))
    (theirs,) = objects(machine.clew("sessions", "-p", "claude", "--json"))
    assert theirs["id"] == new
    limited = machine.clew("sessions", "--limit", "1")
    assert (len(limited.stdout.splitlines()), limited.stderr) == (2, "1 more: --limit 2\n")


def test_sessions_that_cannot_be_read_are_told_and_hide_nobody_elses(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    nothing = machine.clew("sessions")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert nothing.stderr == "No sessions of coding agents on this machine.\n"
    assert machine.clew("sessions", "-p", "codx").returncode == 2
    key = machine.keep("codex", "Mend.")
    database = tmp_path / "home/.local/share/opencode/opencode.db"
    database.parent.mkdir(parents=True)
    database.write_bytes(b"no database at all" * 500)
    run = machine.clew("sessions", "--json")
    assert (run.returncode, [each["id"] for each in objects(run)]) == (1, [key])
    assert run.stderr.startswith("Error: opencode: its sessions could not all be listed: ")
    assert len(run.stderr.splitlines()) == 1
    adopted = machine.clew("adopt", key[:13], "--as", "a")
    assert (adopted.returncode, adopted.stdout) == (0, "a\n")
    assert machine.clew("adopt", "ses_nobody", "--as", "b").returncode == 6
    assert machine.clew("adopt", "0000", "--provider", "codex").returncode == 3


async def test_a_session_is_adopted_from_wherever_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    key = machine.keep("claude_code", "Paint the door.")
    adopted = machine.clew("adopt", key, "--as", "door", "--json")
    (told,) = objects(adopted)
    assert told == {
        "thread_id": "door",
        "provider": "claude_code",
        "id": key,
        "turns": 1,
        "resume": "clew resume door 'what to do next'",
    }
    async with open_checkpointer(machine.url) as store:
        state = await Thread.load(store, "door")
    assert plain_text(state.messages[0]) == "Paint the door."
    assert (state.limits["provider"], state.limits["cwd"]) == ("claude_code", str(machine.cwd))
    twice = machine.clew("adopt", key, "--as", "door")
    assert (twice.returncode, "a thread 'door' in this store already" in twice.stderr) == (2, True)
    unknown = machine.clew("adopt", "11111111-2222-4333-8444-555555555555")
    assert unknown.returncode == 3
    assert "List the sessions with: clew sessions" in unknown.stderr
    same = machine.keep("codex", "Another.", key="0199c0de-0000-7000-8000-000000000001")
    machine.keep("codex", "Yet another.", key="0199c0de-0000-7000-8000-000000000002")
    assert machine.clew("adopt", same[:8]).returncode == 2


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
    assert (nobody.returncode, "listed by: clew ls" in nobody.stderr) == (3, True)
    machine.clew("adopt", key, "--as", key[:9] + "x")
    both = machine.clew("move", key[:9], "--to", "codex")
    assert (both.returncode, "--provider" in both.stderr) == (2, True)
    missing = machine.clew("move", key[:9] + "x", "--to", "codex", env={"PATH": str(tmp_path)})
    assert (missing.returncode, "Install it: npm" in missing.stderr) == (1, True)


async def test_a_thread_is_moved_in_place_and_goes_on_over_there(tmp_path: Path) -> None:
    shop, samples = Workshop(tmp_path), Samples(tmp_path)
    (tmp_path / "home").mkdir()
    moved = samples.clew("move", "trip", "--to", "toy", "--json", env=shop.env)
    (told,) = objects(moved)
    assert (told["provider"], told["command"], told["losses"][0]["what"]) == ("toy", "", "thinking")
    assert (tmp_path / "home" / "toy" / told["id"]).exists()
    async with open_checkpointer(samples.url) as store:
        state = await Thread.load(store, "trip")
    assert (state.limits["provider"], state.reason) == ("toy", "moved to toy")
    on = samples.clew("resume", "trip", "echo", env=shop.env)
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
            timeout=120,
        )
        assert opened.stdout == "Answer to: Still there?\n", opened.stderr
        assert any("at-codex" in str(message) for message in machine.asked[-1])
        third = run("resume", "t", "And here?")
        assert (third.returncode, third.stdout) == (0, "Answer to: And here?\n"), third.stderr
