"""Files after every way of stopping, resumed into an empty folder: they are what they were, or the model is told.

All orderly stops keep them. A second Ctrl-C and SIGKILL leave no time for it.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args

import msgspec
import pytest

from clew import Thread
from clew.agent import RunResult
from clew.checkpointers import open_checkpointer
from clew.log import Checkpoint
from clew.messages import plain_text
from clew.testing import Fault, ModelServer, ScriptedModel
from tests.crash.files_worker import LAST, THREAD, Job, Stop, make_agent, script, work
from tests.crash.processes import ROOT
from tests.limits import PATIENCE
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SAID = {
    "400": "no such thing",
    "exception": "the hook broke",
    "cancel": "cancelled",
    "timeout": "interrupted: timeout: 1 s",
    "SIGTERM": "Stopped; all is on record.",
}
AT_ONCE = ("second Ctrl-C", "SIGKILL")
"""The stops that leave no time to keep anything."""


@pytest.mark.parametrize("kind", ["built-in", "provider"])
@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("stop", get_args(Stop))
async def test_files_are_the_same_in_an_empty_folder_or_the_model_is_told(
    stop: Stop,
    every: int,
    kind: Literal["built-in", "provider"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    refused = Fault(status=400, message="no such thing")
    async with ModelServer([refused] if kind == "provider" else [*script("400"), refused]) as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        job = Job(
            kind=kind, stop=stop, every=every, folder=str(tmp_path), model_url=f"{server.openai_url}/chat/completions"
        )
        said = await stopped(job)
    left = bytes_in(job.files)
    assert LAST in left or (kind == "built-in" and stop in ("400", "exception"))
    async with open_checkpointer(job.store) as store:
        state = await Thread.load(store, THREAD)
        result, seen = await resumed(job, store, tmp_path / "elsewhere")
    told = "[clew]" in seen and ("The files of the workspace were restored" in seen or "The workspace is empty" in seen)
    same = bytes_in(tmp_path / "elsewhere" / "files") == left
    assert told is not same, f"{sorted(left)}, and the model saw {seen}"
    if stop not in AT_ONCE:
        assert same
        assert state.files_turn == state.turns
        assert result.drift.keys().isdisjoint({"files", "files_turn"})
        assert SAID[stop] in said
    else:
        assert told
        now, files = result.drift["files_turn"]
        assert now > files == state.files_turn
        assert what_is_said_of_files(state) in said or stop == "SIGKILL"


@pytest.mark.parametrize(("kind", "turn"), [("built-in", 3), ("provider", 1)])
async def test_a_signal_after_which_files_cannot_be_kept_says_which_turn_they_are_of(
    kind: Literal["built-in", "provider"], turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    job = Job(kind=kind, stop="SIGTERM", every=1, folder=str(tmp_path), ruin=True)
    said = await stopped(job)
    standing = f"the files on record are those of turn {turn}, because they could not be kept: "
    assert f"Stopped, but {standing}" in said
    assert "To go on: " in said
    async with open_checkpointer(job.store) as store:
        state = await Thread.load(store, THREAD)
        assert state.reason.startswith(f"cancelled; {standing}")
        result, seen = await resumed(job, store, tmp_path / "elsewhere")
    assert result.drift["files_turn"] == (turn + 1, turn)
    assert f"were restored as they were after turn {turn}" in seen
    assert LAST not in bytes_in(tmp_path / "elsewhere" / "files")


async def test_a_restore_that_was_killed_half_way_is_brought_to_its_end_by_the_next_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    job = Job(kind="built-in", stop="SIGTERM", every=1, folder=str(tmp_path))
    await stopped(job)
    place = tmp_path / "elsewhere"
    await stopped(msgspec.structs.replace(job, stop="SIGKILL", resume_in=str(place / "files")))
    assert 0 < len(bytes_in(place)) < len(bytes_in(job.files))
    async with open_checkpointer(job.store) as store:
        result, _ = await resumed(job, store, place)
    assert bytes_in(place / "files") == bytes_in(job.files)
    assert result.drift == {}


def what_is_said_of_files(state: Checkpoint) -> str:
    if state.workspace is None:
        return "Stopped at once; no files are on record."
    return f"Stopped at once; the files on record are those of turn {state.files_turn}."


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def stopped(job: Job) -> str:
    """Run a job until it is stopped, and return what was said on the screen."""
    if job.stop in ("SIGTERM", *AT_ONCE):
        return await asyncio.to_thread(signalled, job)
    hanging = asyncio.Event()
    running = asyncio.ensure_future(work(job, hanging.set))
    if job.stop == "cancel":
        await hanging.wait()
        running.cancel()
    try:
        result = await running
    except asyncio.CancelledError:
        return "cancelled"
    except Exception as error:  # noqa: BLE001 - what a vendor's client raises is its own
        return str(error)
    return f"{result.status}: {result.reason}"


def signalled(job: Job) -> str:
    command = [sys.executable, "-m", "tests.crash.files_worker", msgspec.json.encode(job).decode()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hanging\n"
        if job.stop == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        elif job.stop == "SIGKILL":
            process.kill()
        else:
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "keeping\n"
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == (-signal.SIGKILL if job.stop == "SIGKILL" else 130), said
    return said


async def resumed(job: Job, store: object, place: Path) -> tuple[RunResult, str]:
    """Go on elsewhere, where there is nothing; and return what the model was given."""
    files = place / "files"
    if job.kind == "built-in":
        model = ScriptedModel(lambda request: "Done.")
        agent = make_agent(job, model, files, store, lambda: None)
        result = await agent.resume(thread_id=THREAD)
        return result, "\n".join(plain_text(message) for message in model.requests[-1].messages)
    provider = toy_agent(toy_place(place), store, workspace=files)  # type: ignore[arg-type]
    turn = await provider.resume_session(THREAD).send("echo")
    return turn, turn.output
