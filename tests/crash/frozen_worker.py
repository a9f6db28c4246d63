"""An agent that pays, in a process of its own that freezes while it does: a warm parent that forks a child for each job.

`python -m tests.crash.frozen_worker` reads jobs from its input, and says how the child of each ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from clew import Agent, ToolContext, tool
from clew.agent import ToolInDoubt
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.errors import ClewError, ThreadBusy
from clew.messages import ToolCall, assistant
from clew.testing import ScriptedModel
from clew.tools import NOT_DONE, NotDone
from tests.crash.agent_points import line
from tests.crash.holder import shorten_leases

__all__ = ["POINTS", "Ended", "Job"]

POINTS = ("before the fence", "between the fence and the act", "after the act")
_PAUSE = 0.05


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the agent, and where it freezes."""

    url: str
    bank: str
    """The file in which the bank writes down each payment, with its idempotency key."""
    reconcile: bool
    point: str = ""
    """Where in its tool the process stops itself; empty for nowhere."""
    fence: bool = True
    """Whether the tool calls `ctx.fence` before it pays."""
    takeover: bool = False
    lease: float = 0
    """Seconds that a lease of this process lasts; 0 for as long as ever."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    output: str | None = None
    error: str = ""
    doubts: list[str] = []
    """What became of the call in doubt."""


def freeze(job: Job, here: str) -> None:
    if job.point == here:
        os.kill(os.getpid(), signal.SIGSTOP)


def agent_of(job: Job, store: Checkpointer) -> Agent:
    bank = Path(job.bank)

    def was_paid(ctx: ToolContext) -> str | NotDone:
        paid = bank.read_text().split() if bank.exists() else []
        return "paid" if ctx.idempotency_key in paid else NOT_DONE

    @tool(reconcile=was_paid if job.reconcile else None)
    async def pay(ctx: ToolContext) -> str:
        freeze(job, POINTS[0])
        if job.fence:
            await ctx.fence()
        freeze(job, POINTS[1])
        line(bank, ctx.idempotency_key)
        freeze(job, POINTS[2])
        return "paid"

    model = ScriptedModel([assistant(ToolCall("c1", "pay", {})), "Done."])
    return Agent(model, tools=[pay], checkpointer=store, takeover=job.takeover)


async def work(job: Job) -> Ended:
    async with open_checkpointer(job.url) as store:
        agent = agent_of(job, store)
        while True:
            doubts: list[str] = []
            try:
                run = agent.stream("Pay.", thread_id="t", prompt_id="p")
                async for event in run:
                    if isinstance(event, ToolInDoubt):
                        doubts.append(event.becomes)
            except ThreadBusy:
                await asyncio.sleep(_PAUSE)
            except ClewError as error:
                return Ended(error=type(error).__name__)
            else:
                return Ended(output=run.result.output, doubts=doubts)


def serve() -> None:
    """A child for each job, one after the other."""
    for given in sys.stdin:
        job = msgspec.json.decode(given, type=Job)
        child = os.fork()
        if child == 0:
            print(f"pid {os.getpid()}", flush=True)
            if job.lease:
                shorten_leases(job.lease)
            print(msgspec.json.encode(asyncio.run(work(job))).decode(), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(f"exit {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    serve()
