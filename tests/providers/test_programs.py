"""Programs that are on the PATH and cannot be run: found out before anything is begun, and named with the way out."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clew.errors import ProviderMissing
from clew.providers import Place, ProviderAgent, check_providers, find_provider
from clew.providers.base import Command
from clew.providers.process import CannotRun, problem_of, run
from tests.limits import PATIENCE
from tests.providers.toy import toy_place
from tests.servers.clis import cli_path
from tests.servers.npm import VERSIONS
from tests.servers.running import lacking

pytestmark = pytest.mark.anyio

_COMMANDS = {"claude_code": "claude", "codex": "codex", "opencode": "opencode"}


def _stub(path: Path) -> None:
    path.write_text('echo "the postinstall script was not run" >&2\nexit 1\n')
    path.chmod(0o755)


def _folder(path: Path) -> None:
    path.mkdir()


def _not_marked(path: Path) -> None:
    path.write_text("#!/bin/sh\n")


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def _empty(path: Path) -> None:
    path.touch(0o755)


def _script_for(interpreter: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text(f"#!{interpreter}\n")
        path.chmod(0o755)

    return make


def _patched(old: bytes, new: bytes, at: int | None = None) -> Callable[[Path], None]:
    """A real program, changed in one place."""

    def make(path: Path) -> None:
        data = Path("/bin/true").resolve().read_bytes()
        start = data.index(old) if at is None else at
        path.write_bytes(data[:start] + new + data[start + len(new) :])
        path.chmod(0o755)

    return make


_BROKEN = {
    "a stand-in that npm left": (_stub, "placeholder"),
    "a folder": (_folder, "is a folder"),
    "not marked as a program": (_not_marked, "may not run"),
    "a link that leads nowhere": (_dangling, "No such file"),
    "an empty file": (_empty, "is empty"),
    "a script whose interpreter is gone": (_script_for("/no/such/interpreter"), "/no/such/interpreter"),
    "a script for a program that is not on the PATH": (_script_for("/usr/bin/env no-such-node"), "no-such-node"),
    "a program for another processor": (_patched(b"", b"\xf3\x00", 18), "is a program for riscv64"),
    "a program for another libc": (_patched(b"/lib64/ld-linux", b"/lib64/no-linux"), "another kind of Linux"),
    "a program for macOS": (_patched(b"", b"\xcf\xfa\xed\xfe", 0), "is a program for macOS"),
}


def _machine(root: Path) -> Place:
    place = toy_place(root)
    (root / "bin").mkdir()
    return Place(place.cwd, {**place.env, "PATH": f"{root / 'bin'}:/usr/bin:/bin"})


@pytest.mark.parametrize("provider", _COMMANDS)
@pytest.mark.parametrize("kind", _BROKEN)
async def test_a_program_that_cannot_be_run_is_told_with_its_path_the_reason_and_the_command_that_mends_it(
    provider: str, kind: str, tmp_path: Path
) -> None:
    make, reason = _BROKEN[kind]
    place = _machine(tmp_path)
    program = tmp_path / "bin" / _COMMANDS[provider]
    make(program)
    install = find_provider(provider).install
    (health,) = await check_providers(provider, place=place)
    assert not health.ready
    for part in (str(tmp_path / "bin"), reason, install):
        assert part in health.problem
    agent = ProviderAgent(provider=provider, env=place.env, cwd=place.cwd, data_dir=tmp_path / "kept")
    with pytest.raises(ProviderMissing) as error:
        await agent.run("Hi", thread_id="t")
    for part in (str(tmp_path / "bin"), reason, install):
        assert str(error.value).count(part) == 1
    assert await agent.checkpointer.head("t") is None
    await agent.aclose()


async def test_another_provider_takes_over_where_the_program_of_the_first_cannot_be_run(tmp_path: Path) -> None:
    place = _machine(tmp_path)
    for command in _COMMANDS.values():
        _stub(tmp_path / "bin" / command)
    agent = ProviderAgent(provider=["opencode", "codex"], env=place.env, cwd=place.cwd, data_dir=tmp_path / "kept")
    with pytest.raises(ProviderMissing, match="codex: its program cannot be run") as error:
        await agent.run("Hi")
    assert [note for note in error.value.__notes__ if "opencode: its program cannot be run" in note]
    await agent.aclose()


async def test_what_the_system_does_not_start_is_told_by_its_name(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    _stub(tmp_path / "stub")
    with pytest.raises(CannotRun, match=r"stub: Exec format error"):
        await run(Command((str(tmp_path / "stub"),)), place, lambda line: None)
    ended = await run(Command(("/bin/sh", "-c", "echo not our words >&2; exit 127")), place, lambda line: None)
    assert (ended.status, ended.stderr) == (127, "not our words")


def test_what_can_be_run_has_no_problem(tmp_path: Path) -> None:
    script = tmp_path / "script"
    _script_for("/bin/sh")(script)
    for path in (script, Path("/bin/sh").resolve()):
        assert problem_of(path, {"PATH": "/usr/bin:/bin"}) == ""


@pytest.mark.slow
@pytest.mark.xdist_group("real-clis")
async def test_programs_that_npm_installed_without_their_scripts_are_run_if_they_are_there_and_named_if_not(
    tmp_path: Path,
) -> None:
    installed = cli_path().parent
    npm = shutil.which("npm") or lacking("no npm", install="node and npm")
    wanted = [f"{name}@{version}" for name, version in VERSIONS.items()]
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", "--prefix", str(tmp_path)]
    done = subprocess.run([npm, "install", *options, *wanted], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        lacking(f"npm install failed: {done.stderr[-300:]}", install="node and npm")
    modules = tmp_path / "node_modules"
    place = Place(tmp_path, {"HOME": str(tmp_path), "PATH": f"{modules / '.bin'}:/usr/bin:/bin"})
    for health in await check_providers(_COMMANDS, place=place):
        assert not health.ready
        assert "Install it again: npm install -g" in health.problem
    for package in ("opencode-linux-x64", "@openai/codex-linux-x64", "@anthropic-ai/claude-code-linux-x64"):
        if not (installed / package).exists():
            pytest.skip("the packages for this system have other names")
        (modules / package).symlink_to(installed / package)
    for health in await check_providers(_COMMANDS, place=place):
        assert health.program is not None
        assert health.program.problem == ""
        assert health.program.version in VERSIONS.values()
