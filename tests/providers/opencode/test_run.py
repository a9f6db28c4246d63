from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew.errors import InvalidInput, Unavailable
from clew.providers import process
from clew.providers.base import Command, Job, Permissions, Place, Program
from clew.providers.opencode import OpenCode
from tests.providers.opencode.kept import ANSWERED, database, machine

_PROGRAM = Program(Path("/bin/opencode"), "1.18.33")


def _command(opencode: OpenCode, **more: Any) -> Command:
    return opencode.command(_PROGRAM, Job(prompt="-- hi", key=ANSWERED, **more))


def _settings(command: Command) -> Any:
    return json.loads(command.env["OPENCODE_CONFIG_CONTENT"])


def _row(opencode: OpenCode, key: str) -> tuple[Any, ...]:
    connection = sqlite3.connect(database(opencode))
    row = connection.execute("SELECT project_id, directory, path, title FROM session WHERE id = ?", (key,)).fetchone()
    connection.close()
    return tuple(row)


def test_a_prompt_goes_in_by_the_standard_input_and_the_folder_is_named(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    command = _command(opencode, model="a/b/c", options=("--variant", "high"))
    assert command.stdin == b"-- hi"
    assert "-- hi" not in command.argv
    cwd = os.path.realpath(opencode.place.cwd)
    assert command.argv == (
        *("/bin/opencode", "run", "--format", "json", "--thinking", "--session", ANSWERED, "--dir", cwd, "--auto"),
        *("--model", "a/b/c", "--variant", "high"),
    )
    assert command.env["PWD"] == cwd


def test_a_folder_behind_a_link_is_named_as_opencode_will(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    (tmp_path / "link").symlink_to(opencode.place.cwd)
    linked = OpenCode(Place(tmp_path / "link", opencode.place.env))
    assert _command(linked).argv == _command(opencode).argv


@pytest.mark.parametrize(("permissions", "unasked"), [("read", False), ("edit", True), ("full", True)])
def test_only_who_may_change_something_is_not_asked(tmp_path: Path, permissions: Permissions, unasked: bool) -> None:
    assert ("--auto" in _command(machine(tmp_path), permissions=permissions).argv) is unasked


def test_settings_that_the_user_gave_for_the_run_are_kept_under_those_of_the_job(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    given = {
        "theme": "dark",
        "instructions": ["mine.md"],
        "permission": {"webfetch": "deny", "bash": "allow"},
        "agent": {"build": {"model": "a/b", "permission": {"edit": "ask"}}, "mine": {"mode": "primary"}},
    }
    env = {**opencode.place.env, "OPENCODE_CONFIG_CONTENT": json.dumps(given)[:-1] + ', /* a note */ "share": "auto",}'}
    settings = _settings(_command(OpenCode(Place(opencode.place.cwd, env)), system_prompt="Be brief."))
    assert (settings["theme"], settings["share"]) == ("dark", "auto")
    assert settings["instructions"][0] == "mine.md"
    assert len(settings["instructions"]) == 2
    names = list(settings["permission"])
    assert names[:2] == ["webfetch", "bash"]
    assert settings["permission"]["webfetch"] == "deny"
    assert settings["permission"]["bash**"] == "deny"
    assert settings["agent"]["build"]["model"] == "a/b"
    assert next(iter(settings["agent"]["build"]["permission"])) == "edit"
    assert settings["agent"]["mine"] == {"mode": "primary"}


@pytest.mark.parametrize("given", ["{", "[1]"])
def test_settings_that_cannot_be_read_are_refused_by_their_name(tmp_path: Path, given: str) -> None:
    place = msgspec.structs.replace(machine(tmp_path).place, env={"OPENCODE_CONFIG_CONTENT": given, "HOME": "/h"})
    with pytest.raises(InvalidInput, match="OPENCODE_CONFIG_CONTENT"):
        _command(OpenCode(place))


@pytest.mark.anyio
async def test_the_system_prompt_is_in_a_file_of_the_conversation_alone(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    await opencode.prepare(_PROGRAM, Job(prompt="hi", key=ANSWERED, system_prompt="Be brief."))
    (path,) = _settings(_command(opencode, system_prompt="Be brief."))["instructions"]
    assert Path(path).read_text() == "Be brief."
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert "instructions" not in _settings(_command(opencode))
    assert not (opencode.place.home / ".config").exists()


@pytest.mark.anyio
async def test_a_key_that_nobody_has_becomes_an_empty_session_of_the_folder(tmp_path: Path) -> None:
    opencode = machine(tmp_path, empty=True)
    key = opencode.new_key()
    await opencode.prepare(_PROGRAM, Job(prompt="hi", key=key))
    cwd = os.path.realpath(opencode.place.cwd)
    project, directory, path, title = _row(opencode, key)
    assert (project, directory, path) == ("global", cwd, cwd[1:])
    assert title.startswith("New session - 20")
    assert [session.exchanges for session in opencode.sessions()] == [0]


@pytest.mark.anyio
async def test_a_session_of_another_folder_becomes_one_of_this(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    opencode.export(ANSWERED, tmp_path / "before")
    await opencode.prepare(_PROGRAM, Job(prompt="hi", key=ANSWERED))
    assert _row(opencode, ANSWERED)[1] == os.path.realpath(opencode.place.cwd)
    assert opencode.standing(ANSWERED, tmp_path / "before") == "same"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("job", "named"), [(Job(prompt=" \n", key=ANSWERED), "prompt"), (Job(prompt="hi", key="x"), "'x'")]
)
async def test_what_opencode_would_not_take_is_refused_before_it_runs(tmp_path: Path, job: Job, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        await machine(tmp_path).prepare(_PROGRAM, job)


@pytest.mark.anyio
async def test_a_program_that_makes_no_database_is_told_with_its_words(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    database(opencode).unlink()
    program = tmp_path / "opencode"
    program.write_text("#!/bin/sh\necho no disk >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(Unavailable, match=r"status 3\): no disk"):
        await opencode.prepare(Program(program, ""), Job(prompt="hi", key=ANSWERED))


@pytest.mark.parametrize("key", ["../../../evil", "a/b", "", "x" * 300, "\0", "~", f"{ANSWERED}\n", f"{ANSWERED}/../x"])
def test_a_key_that_opencode_does_not_make_is_refused_everywhere(tmp_path: Path, key: str) -> None:
    opencode, folder = machine(tmp_path), tmp_path / "folder"
    opencode.export(ANSWERED, folder)
    before = set(tmp_path.rglob("*"))
    given = Job(prompt="hi", key=key, system_prompt="Be brief.")
    for attempt in (
        lambda: asyncio.run(opencode.prepare(_PROGRAM, given)),
        lambda: opencode.command(_PROGRAM, given),
        lambda: opencode.reader(given),
        lambda: opencode.export(key, tmp_path / "other"),
        lambda: opencode.standing(key, folder),
        lambda: opencode.install_session(key, folder),
        lambda: opencode.write(opencode.read(folder), key, tmp_path / "other"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(repr(key))):
            attempt()
    assert set(tmp_path.rglob("*")) == before


def test_settings_of_the_run_that_are_none_are_refused_without_what_is_in_them(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    for said in ('{"key": "secret', "secret \udcff", "[" * 100_000):
        place = Place(opencode.place.cwd, {**opencode.place.env, "OPENCODE_CONFIG_CONTENT": said})
        with pytest.raises(InvalidInput, match="OPENCODE_CONFIG_CONTENT is not valid JSON") as told:
            _command(OpenCode(place))
        assert "secret" not in str(told.value)


def test_a_database_in_memory_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path, {"HOME": str(tmp_path), "OPENCODE_DB": ":memory:"})
    with pytest.raises(InvalidInput, match="OPENCODE_DB"):
        OpenCode(place).find("anything")


def test_a_database_of_another_name_is_found(tmp_path: Path) -> None:
    opencode = machine(tmp_path)
    database(opencode).rename(tmp_path / "other.db")
    env = {**opencode.place.env, "OPENCODE_DB": str(tmp_path / "other.db")}
    assert OpenCode(Place(tmp_path, env)).find(ANSWERED) == ANSWERED


def _program(path: Path, content: bytes = Path("/bin/true").read_bytes()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def _found(root: Path, **env: str) -> Program | None:
    return OpenCode(Place(root, {"PATH": str(root / "bin"), "HOME": str(root), **env})).program()


def test_a_program_that_is_not_on_the_path_is_none(tmp_path: Path) -> None:
    _program(tmp_path / "elsewhere" / "opencode")
    assert _found(tmp_path) is None


def test_the_native_program_is_found_behind_a_link_with_its_packages_version(tmp_path: Path) -> None:
    native = _program(tmp_path / "opencode-ai" / "bin" / "opencode.exe")
    (tmp_path / "opencode-ai" / "package.json").write_text('{"name":"opencode-ai","version":"9.8.7"}')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "opencode").symlink_to(native)
    assert _found(tmp_path) == Program(native.resolve(), "9.8.7")


def test_the_native_program_is_found_behind_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    script = _program(tmp_path / "lib" / "node_modules" / "opencode-ai" / "bin" / "opencode", b"#!/usr/bin/env node\n")
    native = _program(tmp_path / "lib" / "node_modules" / "opencode-linux-arm64" / "bin" / "opencode")
    (native.parent.parent / "package.json").write_text('{"name":"opencode-linux-arm64","version":"1.2.3"}')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "opencode").symlink_to(script)
    assert _found(tmp_path) == Program(native.resolve(), "1.2.3")


def test_a_program_without_a_package_is_asked_for_its_version(tmp_path: Path) -> None:
    script = _program(tmp_path / "bin" / "opencode", b"#!/bin/sh\necho 3.2.1\n")
    assert _found(tmp_path) == Program(script.resolve(), "3.2.1")


def test_a_program_is_asked_for_its_version_once_and_in_the_places_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THIS_PROCESS", "x")
    asking = '#!/bin/sh\necho asked >> "$HOME/asked"\necho "3.2${OF_THIS_PROCESS}"\n'
    script = _program(tmp_path / "bin" / "opencode", asking.encode())
    assert [_found(tmp_path) for _ in range(2)] == [Program(script, "3.2")] * 2
    assert (tmp_path / "asked").read_text() == "asked\n"
    _program(script, b"#!/bin/sh\necho 3.3.0\n")
    assert _found(tmp_path) == Program(script, "3.3.0")


def test_a_program_that_does_not_say_its_version_in_time_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "VERSION_TIMEOUT", 0.1)
    script = _program(tmp_path / "bin" / "opencode", b"#!/bin/sh\nexec /bin/sleep 600\n")
    assert _found(tmp_path) == Program(script, "")
