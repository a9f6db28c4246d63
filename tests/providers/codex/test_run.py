"""The program, its command line, and the conversation that is there before its first turn."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from pathlib import Path

import pytest
import zstandard

from clew.errors import InvalidInput
from clew.providers import process
from clew.providers.base import Job, Place, Program
from clew.providers.codex import Codex
from clew.providers.codex.rollout import born_at
from tests.providers.codex.kept import at_home, keep

PROGRAM = Program(Path("/opt/codex"), "0.166.0")
KEY = "01a1e046-0000-7000-8000-000000000002"


def job(codex: Codex, prompt: str = "hi", **fields: object) -> Job:
    return Job(**{"prompt": prompt, "key": codex.new_key(), **fields})  # type: ignore[arg-type]


def executable(path: Path, text: str = "#!/bin/sh\necho codex-cli 1.2.3\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def on_path(tmp_path: Path, folder: Path) -> Program | None:
    return Codex(Place(tmp_path, {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(tmp_path)})).program()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What npm installs, for a system that is always the same."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    modules = tmp_path / "lib/node_modules/@openai"
    executable(modules / "codex/bin/codex.js", "#!/usr/bin/env node\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/codex").symlink_to(modules / "codex/bin/codex.js")
    return modules


@pytest.mark.parametrize("place", ["codex-linux-x64", "codex/node_modules/@openai/codex-linux-x64", "codex"])
def test_the_program_is_the_binary_behind_npms_script(tmp_path: Path, npm: Path, place: str) -> None:
    vendor = npm / place / "vendor/x86_64-unknown-linux-musl"
    binary = executable(vendor / "bin/codex")
    (vendor / "codex-package.json").write_text('{"version":"0.166.0"}')
    assert on_path(tmp_path, tmp_path / "bin") == Program(binary, "0.166.0")


def test_a_script_without_its_binary_says_what_is_missing(tmp_path: Path, npm: Path) -> None:
    found = on_path(tmp_path, tmp_path / "bin")
    assert found is not None
    assert "package with the program for this system" in found.problem


def test_a_program_that_is_on_the_path_itself_says_its_version(tmp_path: Path) -> None:
    binary = executable(tmp_path / "bin/codex")
    assert on_path(tmp_path, tmp_path / "bin") == Program(binary, "1.2.3")
    assert on_path(tmp_path, tmp_path / "empty") is None


def test_a_program_is_asked_for_its_version_once_and_in_the_places_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THIS_PROCESS", "9")
    asking = '#!/bin/sh\necho asked >> "$HOME/asked"\necho "1.2.3${OF_THIS_PROCESS}"\n'
    binary = executable(tmp_path / "bin/codex", asking)
    assert [on_path(tmp_path, tmp_path / "bin") for _ in range(2)] == [Program(binary, "1.2.3")] * 2
    assert (tmp_path / "asked").read_text() == "asked\n"
    executable(binary, "#!/bin/sh\necho 1.3.0\n")
    assert on_path(tmp_path, tmp_path / "bin") == Program(binary, "1.3.0")


def test_a_program_that_does_not_say_its_version_in_time_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "VERSION_TIMEOUT", 0.1)
    binary = executable(tmp_path / "bin/codex", "#!/bin/sh\nexec /bin/sleep 600\n")
    assert on_path(tmp_path, tmp_path / "bin") == Program(binary, "")


@pytest.mark.parametrize("key", ["../../../evil", "a/b", "", "x" * 300, "\0", "~", f"{KEY}\n", f"{KEY}/../x"])
def test_a_key_that_codex_does_not_make_is_refused_everywhere(tmp_path: Path, key: str) -> None:
    codex, folder = at_home(tmp_path), tmp_path / "folder"
    own, _ = keep(tmp_path, "rollout-tools.jsonl")
    codex.export(own, folder)
    before = set(tmp_path.rglob("*"))
    asked = job(codex, key=key, system_prompt="Be brief.")
    for attempt in (
        lambda: asyncio.run(codex.prepare(PROGRAM, asked)),
        lambda: codex.command(PROGRAM, asked),
        lambda: codex.reader(asked),
        lambda: codex.export(key, tmp_path / "other"),
        lambda: codex.standing(key, folder),
        lambda: codex.install_session(key, folder),
        lambda: codex.write(codex.read(folder), key, tmp_path / "other"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(repr(key))):
            attempt()
    assert set(tmp_path.rglob("*")) == before


def test_keys_are_in_the_order_of_their_making_and_say_when_that_was(tmp_path: Path) -> None:
    keys = [at_home(tmp_path).new_key() for _ in range(100)]
    assert len(set(keys)) == 100
    assert [key[:13] for key in keys] == sorted(key[:13] for key in keys)
    assert all(born_at(key) is not None for key in keys)


def test_the_prompt_goes_to_the_standard_input_and_all_else_before_the_key(tmp_path: Path) -> None:
    codex = at_home(tmp_path)
    asked = job(codex, "--help \0" + "x" * 200_000, model="gpt-5.5", options=("-c", "a=1"), permissions="read")
    command = codex.command(PROGRAM, asked)
    assert command.stdin == asked.prompt.encode()
    assert command.argv[:5] == ("/opt/codex", "exec", "resume", "--json", "--skip-git-repo-check")
    assert command.argv[-5:] == ("-c", "a=1", "--", asked.key, "-")
    assert command.argv[9:11] == ("--model", "gpt-5.5")
    assert 'sandbox_mode="read-only"' in command.argv


@pytest.mark.parametrize("text", ['a "quoted" \\ word', "lines\n\tand\0controls\x1f\x7f", "schön 🧵", "'''\"\"\""])
def test_a_system_prompt_is_one_setting_whatever_it_holds(tmp_path: Path, text: str) -> None:
    codex = at_home(tmp_path)
    argv = codex.command(PROGRAM, job(codex, system_prompt=text)).argv
    (setting,) = [argument for argument in argv if argument.startswith("developer_instructions=")]
    assert tomllib.loads(setting) == {"developer_instructions": text}
    assert "\0" not in setting


def test_what_codex_could_not_take_is_refused_with_the_reason(tmp_path: Path) -> None:
    codex = at_home(tmp_path)
    with pytest.raises(InvalidInput, match="prompt is empty"):
        codex.command(PROGRAM, job(codex, " \n"))
    with pytest.raises(InvalidInput, match="half a surrogate pair"):
        codex.command(PROGRAM, job(codex, "a\ud800"))
    with pytest.raises(InvalidInput, match=r"AGENTS\.md"):
        codex.command(PROGRAM, job(codex, system_prompt="x" * 140_000))
    with pytest.raises(InvalidInput, match="is not a session id of Codex"):
        codex.command(PROGRAM, job(codex, key="../x"))


@pytest.mark.anyio
async def test_an_empty_conversation_is_made_once_and_then_left_alone(tmp_path: Path) -> None:
    codex = at_home(tmp_path)
    asked = job(codex, system_prompt="Be brief.")
    await codex.prepare(PROGRAM, asked)
    (session,) = codex.sessions()
    assert (session.key, session.cwd, session.exchanges) == (asked.key, str(codex.place.cwd), 0)
    before = session.path.read_bytes()
    await codex.prepare(PROGRAM, asked)
    assert session.path.read_bytes() == before
    codex.export(asked.key, tmp_path / "folder")
    assert codex.read(tmp_path / "folder").messages == ()


@pytest.mark.anyio
async def test_a_system_prompt_is_added_only_where_another_one_holds(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl", torn=b'{"timestamp":"20')
    codex = at_home(tmp_path)
    before = path.read_bytes()
    await codex.prepare(PROGRAM, job(codex, key=key, system_prompt="Be brief."))
    await codex.prepare(PROGRAM, job(codex, key=key))
    assert path.read_bytes() == before
    await codex.prepare(PROGRAM, job(codex, key=key, system_prompt="Be long."))
    added = path.read_bytes().removeprefix(before + b"\n")
    record = json.loads(added)
    last = json.loads(before.splitlines()[-2])
    assert record["payload"]["content"] == [{"type": "input_text", "text": "Be long."}]
    assert record["ordinal"] == last["ordinal"] + 1
    await codex.prepare(PROGRAM, job(codex, key=key, system_prompt="Be long."))
    assert path.read_bytes() == before + b"\n" + added


@pytest.mark.anyio
async def test_a_packed_conversation_is_unpacked_where_a_system_prompt_is_added(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    before = path.read_bytes()
    path.with_name(path.name + ".zst").write_bytes(zstandard.compress(before))
    path.unlink()
    codex = at_home(tmp_path)
    await codex.prepare(PROGRAM, job(codex, key=key, system_prompt="Be long."))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes().startswith(before)
    assert b"Be long." in path.read_bytes()


def test_codex_home_is_where_the_environment_says(tmp_path: Path) -> None:
    key, path = keep(tmp_path, "rollout-tools.jsonl")
    (tmp_path / ".codex").rename(tmp_path / "elsewhere")
    assert at_home(tmp_path).find(key) is None
    assert at_home(tmp_path, CODEX_HOME=str(tmp_path / "elsewhere")).find(key) == key
    assert not path.exists()
