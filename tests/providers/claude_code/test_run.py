"""The program, and the command line for a prompt."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from clew.errors import InvalidInput
from clew.providers import process
from clew.providers.base import Command, Job, Permissions, Program
from clew.providers.claude_code import ClaudeCode, rows
from tests.providers.claude_code.homes import keep, key_of, machine, project

PROGRAM = Program(Path("/usr/bin/claude"), "2.1.197")
KEY = key_of("two-turns")
NATIVE = Path("/bin/true").read_bytes()


def command(claude: ClaudeCode, **job: Any) -> Command:
    given = Job(**{"prompt": "Hi", "key": KEY, **job})
    asyncio.run(claude.prepare(PROGRAM, given))
    return claude.command(PROGRAM, given)


def value_of(option: str, argv: tuple[str, ...]) -> str:
    return argv[argv.index(option) + 1]


def place_program(path: Path, content: bytes = NATIVE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def test_the_first_turn_fixes_the_key(tmp_path: Path) -> None:
    argv = command(machine(tmp_path)).argv
    assert argv[0] == "/usr/bin/claude"
    assert value_of("--session-id", argv) == KEY
    assert "--resume" not in argv


def test_a_later_turn_resumes_by_path_whatever_the_folder(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "two-turns", "-of-another-folder")
    argv = command(claude).argv
    assert value_of("--resume", argv) == str(path)
    assert "--session-id" not in argv


@pytest.mark.parametrize("left", [b"", b'{"type":"queue-operation","content":"x"}\n', b'{"type":"us'])
def test_what_a_program_left_that_died_at_once_does_not_take_the_key(tmp_path: Path, left: bytes) -> None:
    claude = machine(tmp_path)
    path = project(claude) / f"{KEY}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(left)
    assert value_of("--session-id", command(claude).argv) == KEY
    assert not path.exists()
    assert path.with_name(f"{path.name}.aside-1").read_bytes() == left


def test_a_torn_row_becomes_a_line_of_its_own_before_the_program_writes_behind_it(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "two-turns")
    torn = path.read_bytes() + b'{"type":"assis'
    path.write_bytes(torn)
    command(claude)
    command(claude)
    assert path.read_bytes() == torn + b"\n"


def test_a_row_that_another_program_is_writing_at_that_moment_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude = machine(tmp_path)
    path = keep(claude, "two-turns")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":')
    look = rows._last_line

    def look_while_it_is_written(path: Path) -> tuple[int, bytes]:
        seen = look(path)
        with path.open("ab") as file:
            file.write(b'"mode"}\n')
        return seen

    monkeypatch.setattr(rows, "_last_line", look_while_it_is_written)
    command(claude)
    assert path.read_bytes() == whole + b'{"type":"mode"}\n\n'


def test_the_prompt_goes_by_the_standard_input(tmp_path: Path) -> None:
    prompt = "--help \0 ünï " + "x" * 1_000_000
    given = command(machine(tmp_path), prompt=prompt)
    assert given.stdin == prompt.encode()
    assert not any("help" in argument for argument in given.argv)


def test_the_system_prompt_is_added_on_every_turn(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    assert value_of("--append-system-prompt", command(claude, system_prompt="Be brief.").argv) == "Be brief."
    keep(claude, "two-turns")
    assert value_of("--append-system-prompt", command(claude, system_prompt="Be brief.").argv) == "Be brief."


def test_a_system_prompt_that_no_argument_could_hold_goes_by_a_file(tmp_path: Path) -> None:
    prompt = "ü" * 70_000
    argv = command(machine(tmp_path), system_prompt=prompt).argv
    path = Path(value_of("--append-system-prompt-file", argv))
    assert path.read_text() == prompt
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert max(map(len, argv)) < 1000


@pytest.mark.parametrize(
    ("permissions", "mode"), [("read", "dontAsk"), ("edit", "acceptEdits"), ("full", "bypassPermissions")]
)
def test_each_permission_is_a_mode_of_the_program(tmp_path: Path, permissions: Permissions, mode: str) -> None:
    assert value_of("--permission-mode", command(machine(tmp_path), permissions=permissions).argv) == mode


def test_who_may_only_look_has_no_tool_that_changes_anything(tmp_path: Path) -> None:
    tools = value_of("--tools", command(machine(tmp_path), permissions="read").argv).split(",")
    assert not {"Bash", "Edit", "Write", "NotebookEdit"} & set(tools)


def test_the_users_own_options_come_last(tmp_path: Path) -> None:
    argv = command(machine(tmp_path), model="opus", options=("--effort", "low")).argv
    assert value_of("--model", argv) == "opus"
    assert argv[-2:] == ("--effort", "low")


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"prompt": " \n"}, "only white space"),
        ({"prompt": "\ud800"}, "half a surrogate pair"),
        ({"system_prompt": "a\0b"}, "the system prompt contains a NUL"),
        ({"model": "a\0b"}, "the model contains a NUL"),
        ({"options": ("--x\0",)}, "the option contains a NUL"),
        ({"key": "../x"}, "session ids are UUIDs"),
    ],
)
def test_what_the_program_could_not_take_is_refused(tmp_path: Path, job: dict[str, Any], reason: str) -> None:
    claude = machine(tmp_path)
    with pytest.raises(InvalidInput, match=reason):
        command(claude, **job)
    with pytest.raises(InvalidInput, match=reason):
        claude.command(PROGRAM, Job(**{"prompt": "Hi", "key": KEY, **job}))


def test_new_keys_are_keys(tmp_path: Path) -> None:
    claude = machine(tmp_path)
    first, second = claude.new_key(), claude.new_key()
    assert first != second
    assert value_of("--session-id", command(claude, key=first).argv) == first


def test_the_program_is_the_file_itself_with_the_version_of_its_package(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "node_modules" / "@anthropic-ai" / "claude-code"
    native = place_program(package / "bin" / "claude.exe")
    (package / "package.json").write_text(json.dumps({"name": "@anthropic-ai/claude-code", "version": "2.1.197"}))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "claude").symlink_to(native)
    assert machine(tmp_path).program() == Program(native, "2.1.197")


def test_in_the_place_of_a_stub_the_program_beside_it_is_taken(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "node_modules" / "@anthropic-ai"
    stub = place_program(packages / "claude-code" / "bin" / "claude.exe", b"#!/bin/sh\necho run the installer\n")
    native = place_program(packages / "claude-code-linux-x64" / "claude")
    about = {"name": "@anthropic-ai/claude-code-linux-x64", "version": "2.1.197"}
    (native.parent / "package.json").write_text(json.dumps(about))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "claude").symlink_to(stub)
    assert machine(tmp_path).program() == Program(native, "2.1.197")


def test_the_programs_own_installation_names_the_file_by_its_version(tmp_path: Path) -> None:
    native = place_program(tmp_path / "share" / "claude" / "versions" / "2.1.197")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "claude").symlink_to(native)
    assert machine(tmp_path).program() == Program(native, "2.1.197")


def test_any_other_program_is_asked_for_its_version(tmp_path: Path) -> None:
    place_program(tmp_path / "bin" / "claude", b'#!/bin/sh\n[ "$1" = --version ] && echo "9.8.7 (Claude Code)"\n')
    found = machine(tmp_path).program()
    assert found is not None
    assert found.version == "9.8.7"


def test_a_program_is_asked_for_its_version_once_and_in_the_places_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THIS_PROCESS", "x")
    program = place_program(
        tmp_path / "bin" / "claude", b'#!/bin/sh\necho asked >> "$HOME/asked"\necho "1.2${OF_THIS_PROCESS}"\n'
    )
    claude = machine(tmp_path)
    assert [claude.program(), machine(tmp_path).program()] == [Program(program, "1.2")] * 2
    assert (claude.place.home / "asked").read_text() == "asked\n"
    place_program(program, b"#!/bin/sh\necho 1.3.0\n")
    assert claude.program() == Program(program, "1.3.0")


def test_a_program_that_does_not_say_its_version_in_time_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "VERSION_TIMEOUT", 0.1)
    program = place_program(tmp_path / "bin" / "claude", b"#!/bin/sh\nexec /bin/sleep 600\n")
    assert machine(tmp_path).program() == Program(program, "")


@pytest.mark.parametrize("key", ["../../../evil", "a/b", "", "x" * 300, "\0", "~", f"{KEY}\n", f"{KEY}/../x"])
def test_a_key_that_claude_code_does_not_make_is_refused_everywhere(tmp_path: Path, key: str) -> None:
    claude, folder = machine(tmp_path), tmp_path / "folder"
    keep(claude, "two-turns")
    claude.export(KEY, folder)
    before = set(tmp_path.rglob("*"))
    given = Job(prompt="Hi", key=key, system_prompt="x" * 200_000)
    for attempt in (
        lambda: asyncio.run(claude.prepare(PROGRAM, given)),
        lambda: claude.command(PROGRAM, given),
        lambda: claude.reader(given),
        lambda: claude.export(key, tmp_path / "other"),
        lambda: claude.standing(key, folder),
        lambda: claude.install_session(key, folder),
        lambda: claude.write(claude.read(folder), key, tmp_path / "other"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(repr(key))):
            attempt()
    assert set(tmp_path.rglob("*")) == before
