"""The sessions on a machine."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from tests.providers.claude_code.homes import keep, key_of, machine, project

KEY = "00000000-0000-4000-8000-000000000000"


def test_a_session_is_listed_with_what_its_file_says_of_it(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "two-turns")
    os.utime(path, (1_800_000_000, 1_800_000_000))
    (found,) = claude.sessions()
    assert (found.provider, found.key, found.path) == ("claude_code", key_of("two-turns"), path)
    assert (found.cwd, found.title, found.exchanges) == ("/home/user/other", "-what is 2+2? ünï", 2)
    assert found.created_at == datetime(2026, 11, 15, 17, 17, 46, 463000, tzinfo=UTC)
    assert found.updated_at == datetime.fromtimestamp(1_800_000_000, UTC)
    assert found.size == path.stat().st_size


def test_the_newest_come_first_from_all_projects(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    for number, name in enumerate(["two-turns", "sub-agent", "compacted"]):
        os.utime(keep(claude, name, f"-{name}"), (1000 + number, 1000 + number))
    assert [session.key for session in claude.sessions()] == [
        key_of(name) for name in ("compacted", "sub-agent", "two-turns")
    ]


def test_of_a_long_session_only_the_ends_are_read(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "two-turns")
    rows = path.read_bytes().splitlines(keepends=True)
    filler = b'{"type":"progress","x":"' + b"x" * 1000 + b'"}\n'
    title = json.dumps({"type": "ai-title", "aiTitle": "Sums"}).encode() + b"\n"
    path.write_bytes(b"".join(rows[:5]) + b"no row at all\n" + filler * 500 + b"".join(rows[5:]) + title)
    (found,) = claude.sessions()
    assert (found.title, found.cwd, found.exchanges) == ("Sums", "/home/user/other", None)


def test_a_session_that_begins_with_something_long_has_a_title_too(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "two-turns")
    filler = b'{"type":"progress","x":"' + b"x" * 60_000 + b'"}\n'
    path.write_bytes(filler + path.read_bytes() + filler * 10)
    (found,) = claude.sessions()
    assert (found.title, found.exchanges) == ("-what is 2+2? ünï", None)


def test_what_is_no_session_is_not_listed(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    folder = project(claude)
    folder.mkdir(parents=True)
    (folder / f"{KEY}.jsonl").write_text('{"type":"queue-operation","content":"x"}\n')
    (folder / "agent-a1.jsonl").write_text('{"type":"user","uuid":"a","isSidechain":true}\n')
    (folder / f"{KEY}.jsonl.aside-1").write_text('{"type":"user","uuid":"a"}\n')
    (folder.parent / "a file").write_text("")
    assert list(claude.sessions()) == []


def test_a_machine_without_claude_code_has_no_sessions(tmp_path: Path) -> None:
    assert list(machine(tmp_path).sessions()) == []
