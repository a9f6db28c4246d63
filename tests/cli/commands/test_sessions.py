"""`clew sessions`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.command_line import objects
from tests.cli.native_sessions import Machine

pytestmark = pytest.mark.slow


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
    assert table[0].split() == ["PROVIDER", "ID", "TITLE", "EXCHANGES", "CWD", "AGE", "SIZE"]
    assert table[1].split()[:5] == ["claude_code", new, "Paint", "the", "door."]
    assert table[2].startswith(f"codex        {old}  Mend the \\x1b[31mroof.")
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
