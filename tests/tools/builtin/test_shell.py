"""Commands: their output, their end, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from clew.messages import Text
from clew.tools import ToolContext, ToolError, call_tool, run_command
from clew.tools.builtin import shell as shell_module
from tests.limits import PATIENCE

pytestmark = pytest.mark.anyio


async def is_gone(pid: int) -> bool:
    for _ in range(3000):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        await asyncio.sleep(0.02)
    return False


async def pid_in(file: Path) -> int:
    for _ in range(6000):
        if file.exists() and file.read_text().strip():
            return int(file.read_text())
        await asyncio.sleep(0.01)
    raise AssertionError("the command did not start")


async def test_output_errors_and_exit_code_are_returned(tmp_path: Path) -> None:
    text = await run_command("pwd; echo oops >&2; exit 3", ToolContext(workspace=tmp_path))
    assert text.startswith(f"{tmp_path}\noops\n[exit code 3, after ")


async def test_a_command_has_no_input_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_TEST", "there")
    text = await run_command("cat; printf $CLEW_TEST", ToolContext(workspace=tmp_path), 10)
    assert text.startswith("there\n[exit code 0")


async def test_of_a_long_output_head_and_tail_are_kept(tmp_path: Path) -> None:
    text = await run_command(
        "echo begin; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end", ToolContext(workspace=tmp_path)
    )
    assert text.startswith("begin\nxxx")
    assert "\nend\n[exit code 0" in text
    assert "bytes left out …]" in text
    assert len(text) < 2 * shell_module.KEPT + 200


async def test_output_that_is_no_text_is_shown_as_well_as_it_can_be(tmp_path: Path) -> None:
    assert "a\ufffdb\n" in await run_command("printf 'a\\377b'", ToolContext(workspace=tmp_path))


async def test_a_command_that_times_out_is_killed_with_all_it_started(tmp_path: Path) -> None:
    command = (
        "echo before; (trap '' TERM; echo $BASHPID >inner; exec sleep 3600) & sh -c 'echo $$ >other; exec sleep 3600'"
    )
    result = await call_tool(
        run_command,
        {"command": f'bash -c "{command.replace("$", chr(92) + "$")}"', "timeout": 2},
        ToolContext(workspace=tmp_path),
    )
    assert result.is_error
    (block,) = result.content
    assert block == Text("before\n[timed out after 2 s, and was killed]")
    assert await is_gone(await pid_in(tmp_path / "inner"))
    assert await is_gone(await pid_in(tmp_path / "other"))


async def test_what_a_command_leaves_in_the_background_is_killed_when_it_ends(tmp_path: Path) -> None:
    text = await run_command("sleep 3600 & echo $! >pid; echo done", ToolContext(workspace=tmp_path), timeout=PATIENCE)
    assert text.startswith("done\n[exit code 0")
    assert await is_gone(await pid_in(tmp_path / "pid"))


async def test_one_that_leaves_its_group_does_not_hold_the_call(tmp_path: Path) -> None:
    script = "setsid sh -c 'echo $$ >pid; exec sleep 3600' & while [ ! -s pid ]; do sleep 0.01; done; echo done"
    text = await run_command(script, ToolContext(workspace=tmp_path), timeout=PATIENCE)
    os.kill(await pid_in(tmp_path / "pid"), signal.SIGKILL)
    assert text.startswith("done\n[exit code 0")


async def test_cancelling_kills_the_command(tmp_path: Path) -> None:
    task = asyncio.create_task(
        call_tool(run_command, {"command": "echo $$ >pid; sleep 60"}, ToolContext(workspace=tmp_path))
    )
    pid = await pid_in(tmp_path / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await is_gone(pid)


async def test_cancelling_while_the_command_starts_kills_what_it_started_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = asyncio.create_subprocess_shell
    started = asyncio.Event()

    async def start_slowly(*command: str, **how: Any) -> asyncio.subprocess.Process:
        process: asyncio.subprocess.Process = await real(*command, **how)
        await pid_in(tmp_path / "inner")
        started.set()
        await asyncio.sleep(0.05)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_shell", start_slowly)
    task = asyncio.create_task(run_command("sleep 3600 & echo $! >inner; wait", ToolContext(workspace=tmp_path)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await is_gone(await pid_in(tmp_path / "inner"))


async def test_a_command_that_a_signal_ended_says_so(tmp_path: Path) -> None:
    assert "[killed by signal 9" in await run_command("kill -9 $$", ToolContext(workspace=tmp_path))


@pytest.mark.parametrize("timeout", [0, -1, 4000, float("nan")])
async def test_a_timeout_that_makes_no_sense_is_refused(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(ToolError, match="timeout"):
        await run_command("true", ToolContext(workspace=tmp_path), timeout)


async def test_without_a_workspace_there_are_no_commands() -> None:
    with pytest.raises(ToolError, match="no workspace"):
        await run_command("true", ToolContext())
