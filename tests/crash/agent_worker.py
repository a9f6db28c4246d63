"""An agent in a process of its own, which ends at a named point: a warm parent that forks a child for each job.

`python -m tests.crash.agent_worker` reads jobs from its input, and says how the child of each ended. The parent never opens
a store. What a child prints as an error is in the file `stderr` beside its store.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from clew.agent import Budget
from clew.checkpointers import open_checkpointer
from clew.errors import ClewError
from clew.workspace import restore, snapshot
from tests.crash.agent_desk import PROMPT, THREAD, make_agent
from tests.crash.agent_points import Act, Points, watch
from tests.crash.holder import shorten_leases

__all__ = ["WARM", "Ended", "Job"]

WARM = (restore, snapshot)
"""What a workspace imports when it is first needed: a child has it from its parent."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the agent, and what is to happen to it."""

    url: str
    folder: str
    point: str = ""
    act: Act = "signal"
    signal: int = signal.SIGKILL
    in_order: bool = True
    """Let the calls of every other turn end one after the other."""
    options: dict[str, Any] = {}
    """Of the agent."""
    budget: dict[str, Any] = {}
    resume: bool = False
    """Go on with the thread that is there, without a prompt."""
    lease: float = 0
    """Seconds that a lease of this process lasts; 0 for as long as ever."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended that was not killed."""

    status: str
    reason: str = ""
    turns: int = 0
    output: str | None = None
    drift: list[str] = []
    error: str = ""
    """The name of what was raised instead."""
    counts: dict[str, int] = {}
    """How often it came by each place."""


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def work(job: Job) -> Ended:
    folder = Path(job.folder)
    points = Points(folder, job.point, job.act, job.signal, in_order=job.in_order)
    async with open_checkpointer(job.url) as store:
        watch(points, store)
        agent = make_agent(folder, store, points, budget=Budget(**job.budget), **job.options)
        try:
            run = agent.resume(thread_id=THREAD) if job.resume else agent.run(PROMPT, thread_id=THREAD)
            result = await run
        except (ClewError, RuntimeError) as error:
            return Ended(status="failed", reason=str(error), error=type(error).__name__)
    return Ended(
        status=result.status,
        reason=result.reason,
        turns=result.turns,
        output=result.output,
        drift=sorted(result.drift),
        counts=points.counts,
    )


def run(job: Job) -> None:
    if job.lease:
        shorten_leases(job.lease)
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    os.environ["CLEW_CACHE"] = f"{job.folder}/cache"
    errors = os.open(f"{job.folder}/stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it runs in the background ignore it
    say(msgspec.json.encode(asyncio.run(work(job))).decode())


def serve() -> None:
    """A child for each job, one after the other."""
    for line in sys.stdin:
        job = msgspec.json.decode(line, type=Job)
        child = os.fork()
        if child == 0:
            say(f"pid {os.getpid()}")
            run(job)
            sys.exit()
        _, status = os.waitpid(child, 0)
        say(f"exit {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    serve()
