"""`clew doctor --live`: prove that an agent on this store can be resumed. An agent is killed inside a tool, and another
process resumes it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping

from clew.checkpointers import open_checkpointer
from clew.checkpointers.registry import default_url
from clew.cli.commands.doctor_checks import Finding, scratch_id
from clew.cli.commands.doctor_worker import IN_TOOL
from clew.errors import ClewError

__all__ = ["prove_resume"]

_PATIENCE = 120.0
_WANTED = {"status": "done", "turns": 3, "asked": 1, "ran": []}
"""The report that is expected of the process that resumes the thread: the thread is done after three turns in all, and
the resuming process has asked the model once, for the last response, and has run no tool."""


async def prove_resume(url: str | None) -> Finding:
    """Run an agent on the store at `url` (None for the default store), kill it inside a tool, resume it in another
    process, and delete its thread. Returns a `Finding`, a line of the report of `clew doctor`, which says whether the
    model was asked or a tool run a second time."""
    given = default_url() if url is None else url
    if given.lower().startswith("memory:"):
        return Finding(
            "resume", "warning", "a store in memory is gone when its process ends", "Name another store with --store."
        )
    thread_id, began = scratch_id(), time.perf_counter()
    env = {**os.environ, "CLEW_STORE": given}
    try:
        async with asyncio.timeout(_PATIENCE):
            failed = await _start_and_kill(thread_id, env) or await _resume(thread_id, env)
    except TimeoutError:
        failed = f"it was not done within {_PATIENCE:.0f} s"
    finally:
        left = await _remove(given, thread_id)
    if failed or left:
        advice = "Do not run agents on this store until this is fixed."
        return Finding("resume", "problem", failed or left, advice)
    took = time.perf_counter() - began
    what = (
        f"an agent was killed inside a tool and resumed in another process: nothing asked or run twice ({took:.1f} s)"
    )
    return Finding("resume", "ok", what)


async def _remove(url: str, thread_id: str) -> str:
    """Delete the thread that `clew doctor --live` made for its test in the store at `url`. Returns an error message;
    empty if the thread was deleted."""
    try:
        async with open_checkpointer(url) as store:
            await store.delete(thread_id)
    except ClewError as error:
        return f"the thread of the test could not be removed: {error}"
    return ""


async def _start_and_kill(thread_id: str, env: Mapping[str, str]) -> str:
    """Start a worker process on this thread with the environment `env`, and kill it inside its second tool. Returns
    what went wrong; empty if nothing did."""
    worker = await _worker(thread_id, env)
    try:
        line = (await _line(worker)).strip()
    finally:
        if worker.returncode is None:
            worker.kill()
        _, said = await worker.communicate()
    return "" if line == IN_TOOL else f"the agent did not get to work: {_last(said)}"


async def _resume(thread_id: str, env: Mapping[str, str]) -> str:
    """Start a worker process that resumes the thread, with the environment `env`, and wait for its report. Returns in
    words how the report differs from the expected one, `_WANTED`; empty if it does not."""
    worker = await _worker(thread_id, env)
    try:
        output, said = await worker.communicate()
    except BaseException:
        if worker.returncode is None:
            worker.kill()
        raise
    try:
        found = json.loads(output)
    except ValueError:
        return f"the agent did not resume: {_last(said)}"
    wrong = [
        f"{name} is {found.get(name)!r}, not {want!r}" for name, want in _WANTED.items() if found.get(name) != want
    ]
    return f"the resume was not exact: {', '.join(wrong)}" if wrong else ""


async def _worker(thread_id: str, env: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start a process that runs the module `doctor_worker` on this thread, with the environment `env`. The new process
    has a process group of its own, so that Ctrl+C reaches only the present process, which then kills the new one."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "clew.cli.commands.doctor_worker", thread_id),
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        process_group=0,
    )


async def _line(worker: asyncio.subprocess.Process) -> str:
    assert worker.stdout is not None  # noqa: S101 - it is piped
    return (await worker.stdout.readline()).decode(errors="replace")


def _last(said: bytes) -> str:
    """Return the last line of `said`, the error output of a process. That line names the error."""
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "its process ended and said nothing"
