"""`clew doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers.sqlite.connection import library
from tests.cli.command_line import Samples, clew, objects

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def _by_check(run: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["check"]: finding for finding in objects(run)}


async def _ids(url: str) -> set[str]:
    async with open_checkpointer(url) as store:
        return {head.thread_id async for head in store.heads()}


async def test_a_store_in_order_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    before = await _ids(samples.url)
    run = samples.clew("doctor")
    assert run.returncode == 0, run.stdout
    assert "ok       writing: a thread was written, read back and removed" in run.stdout
    assert f", {library()}, " in run.stdout.partition("\n")[0]
    assert "\x1b" not in run.stdout
    assert await _ids(samples.url) == before


async def test_live_an_agent_is_killed_and_resumed_on_the_store_and_its_thread_removed(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    before = await _ids(samples.url)
    found = _by_check(samples.clew("doctor", "--live", "--json"))
    assert (found["resume"]["level"], "run twice" in found["resume"]["what"]) == ("ok", True)
    assert {"python", "extras", "clock", "locale", "store", "disk", "privacy", "codex"} <= found.keys()
    assert await _ids(samples.url) == before


def test_a_store_that_cannot_be_written_is_a_problem_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    run = clew("doctor", "--live", "--json", store="sqlite:////proc/nowhere/clew.db")
    found = _by_check(run)
    assert (run.returncode, found["store"]["level"], "resume" in found) == (1, "problem", False)
    assert {"python", "claude_code"} <= found.keys()


def test_a_url_that_is_none_and_a_server_that_is_away_are_problems_without_credentials(tmp_path: Path) -> None:
    for url in ("nosuch://user:secret@host/x", "postgresql://user:secret@127.0.0.1:9/x"):
        run = clew("doctor", "--json", store=url)
        assert (run.returncode, _by_check(run)["store"]["level"]) == (1, "problem")
        assert "secret" not in run.stdout + run.stderr


@pytest.mark.parametrize("is_open", [True, False])
def test_a_running_service_that_asks_for_no_token_is_named(is_open: bool, tmp_path: Path) -> None:
    secret = "a-long-and-secret-token"
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    more = {} if is_open else {"CLEW_SERVE_TOKENS": secret}
    command = [sys.executable, "-m", "clew", "serve", "--port", "0", "--store", "memory://"]
    command += ["--no-token"] if is_open else []
    with subprocess.Popen(command, env={**os.environ, **env, **more}, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            events = (json.loads(line) for line in process.stderr)
            url = next(event["url"] for event in events if event["event"] == "listening")
            run = clew("doctor", "--json", store="memory://", env=env)
        finally:
            process.kill()
    [found] = [finding for finding in map(json.loads, run.stdout.splitlines()) if url in finding["what"]]
    assert (found["check"], found["level"]) == ("service", "warning" if is_open else "ok")
    assert ("without --no-token" in found["advice"]) == is_open
    after = clew("doctor", "--json", store="memory://", env=env)  # the killed one left its note behind
    assert url not in after.stdout


def test_a_damaged_store_is_a_problem(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    samples.damage_head("report")
    run = samples.clew("doctor", "--json")
    assert (run.returncode, _by_check(run)["store"]["level"]) == (1, "problem")


async def test_what_is_amiss_and_does_no_harm_yet_is_a_warning_that_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    async with open_checkpointer(f"file://{folder}") as store:
        async with Thread.open(store, "trip"):
            pass
        head = await store.head("trip")
        assert head is not None
        later = msgspec.structs.replace(head, updated_at=datetime.now(UTC) + timedelta(hours=1))
        await store.append("trip", [], at=head.frames, head=later)
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run = clew("doctor", "--json", store=f"file://{folder}", env=env)
    found = _by_check(run)
    assert run.returncode == 0
    assert [found[name]["level"] for name in ("privacy", "clocks", "locale")] == ["warning"] * 3
    assert str(folder) in found["privacy"]["advice"]
    assert all(finding["advice"] for finding in found.values() if finding["level"] != "ok")


def test_a_program_that_is_on_the_path_and_cannot_be_run_is_told_with_the_command_that_mends_it(tmp_path: Path) -> None:
    env = _with_codex(tmp_path, "")
    (tmp_path / "bin" / "codex").write_text("echo the install script was not run >&2; exit 1\n")
    found = _by_check(clew("doctor", "--json", store="memory://", env=env))["codex"]
    assert (found["level"], found["what"]) == ("warning", "Codex is installed, but cannot be run")
    assert str(tmp_path / "bin" / "codex") in found["advice"]
    assert "npm install -g @openai/codex" in found["advice"]


def _with_codex(folder: Path, body: str, version: str = "0.166.0") -> dict[str, str]:
    """The environment of a machine where Codex is this script."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "codex"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo codex-cli {version} && exit\n{body}\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:/usr/bin:/bin", "CODEX_HOME": str(folder), "CODEX_API_KEY": "not one"}


def test_a_program_that_is_here_is_asked_only_if_it_is_named(tmp_path: Path) -> None:
    env = _with_codex(tmp_path, f"touch {tmp_path / 'asked'}; exit 1")
    found = _by_check(clew("doctor", "--json", store="memory://", env=env))["codex"]
    assert (found["level"], "0.166.0" in found["what"], "api key" in found["what"]) == ("ok", True, True)
    assert not (tmp_path / "asked").exists()
    run = clew("doctor", "--live", "--provider", "codex", "--json", store="memory://", env=env)
    assert (run.returncode, _by_check(run)["codex"]["level"]) == (1, "problem")
    assert (tmp_path / "asked").exists()
    assert "not one" not in run.stdout


def test_a_program_that_is_too_old_is_named_with_its_version_and_what_to_run_and_is_not_asked(tmp_path: Path) -> None:
    env = _with_codex(tmp_path, f"touch {tmp_path / 'asked'}; exit 1", "0.99.0")
    found = _by_check(clew("doctor", "--json", store="memory://", env=env))["codex"]
    assert (found["level"], "0.99.0" in found["what"]) == ("warning", True)
    assert "before 0.120.0" in found["advice"]
    assert "npm install -g @openai/codex@latest" in found["advice"]
    run = clew("doctor", "--live", "--provider", "codex", "--json", store="memory://", env=env)
    assert (run.returncode, _by_check(run)["codex"]["level"]) == (1, "problem")
    assert not (tmp_path / "asked").exists()


def test_a_program_that_is_newer_than_any_that_was_tried_is_taken_and_said_to_be(tmp_path: Path) -> None:
    env = _with_codex(tmp_path, "exit 1", "99.0.0")
    found = _by_check(clew("doctor", "--json", store="memory://", env=env))["codex"]
    assert (found["level"], "newer than 0.166.0" in found["what"]) == ("ok", True)


def test_a_program_that_is_named_and_not_here_is_a_problem(tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    run = clew("doctor", "--live", "--provider", "codex", "--json", store="memory://", env=env)
    found = _by_check(run)
    assert (run.returncode, found["codex"]["level"], found["claude_code"]["level"]) == (1, "problem", "ok")
    assert "npm install" in found["codex"]["advice"]


def test_a_store_in_memory_has_nothing_to_resume() -> None:
    run = clew("doctor", "--live", "--json", store="memory://")
    assert (run.returncode, _by_check(run)["resume"]["level"]) == (0, "warning")


def test_a_prompt_is_sent_only_if_it_is_asked_for_live_and_to_one_that_is_known(tmp_path: Path) -> None:
    for arguments, said in [(("--provider", "codex"), "--live"), (("--live", "--provider", "nosuch"), "nosuch")]:
        run = clew("doctor", *arguments, store="memory://")
        assert (run.returncode, run.stdout) == (2, "")
        assert said in run.stderr
