"""One worker of the lab, which works until SIGTERM drains it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import msgspec

from clew.checkpointers import Head, open_checkpointer
from clew.workers import Retries, Worker
from clew.workers.events import Ended
from tests.crash.lab.agent import lab_agent
from tests.crash.lab.ledger import Ledger
from tests.crash.lab.payers import payers

__all__ = ["Job", "die", "work"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has to know."""

    url: str
    ledger: str
    files: str
    """The folder in which its machine keeps the files of threads."""
    life: str = ""
    """The name of this process. It is new with each start."""
    concurrency: int = 8
    delay: float = 0.0
    """Seconds that the model thinks."""
    pause: float = 0.0
    """Seconds that a tool takes at most before and after what it does."""
    limits: dict[str, int] = {}
    dies: float = 0.0
    """How likely it is that the worker kills itself between the last append of a run and what it does after that."""
    gate: str = ""
    """A file for which the payers of `tests.crash.lab.payers` wait inside their tools. Given this, the worker runs them."""
    temporal: str = ""
    """The address of a Temporal server whose worker this is; empty for a worker of the store alone."""


def die(ledger: Ledger) -> None:
    """Kill this process, and write down when."""
    ledger.add("died", "", 0)
    os.kill(os.getpid(), signal.SIGKILL)


class _Mortal(Worker):
    """A worker that may be killed right after the last append of a run."""

    dies = 0.0
    ledger: Ledger

    async def _run(self, head: Head) -> Ended:
        ended = await super()._run(head)
        if random.random() < self.dies:
            die(self.ledger)
        return ended


async def work(job: Job) -> None:
    ledger = Ledger(Path(job.ledger), job.life)
    async with open_checkpointer(job.url) as store:
        agents = [lab_agent(store, ledger, Path(job.files), delay=job.delay, pause=job.pause)]
        if job.gate:
            agents = payers(store, ledger, Path(job.gate))
        worker = _Mortal(
            agents,
            store=store,
            concurrency=job.concurrency,
            label=job.life,
            poll=0.3,
            limits=job.limits,
            retries=Retries(most=10**6, first=0.2, longest=2.0),
        )
        worker.dies, worker.ledger = job.dies, ledger
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drain)
        await worker.run()
