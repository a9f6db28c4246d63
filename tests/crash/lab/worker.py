"""One worker of the lab, which works until SIGTERM drains it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec

from clew.checkpointers import open_checkpointer
from clew.workers import Retries, Worker
from tests.crash.lab.agent import lab_agent
from tests.crash.lab.ledger import Ledger

__all__ = ["Job", "work"]


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
    temporal: str = ""
    """The address of a Temporal server whose worker this is; empty for a worker of the store alone."""


async def work(job: Job) -> None:
    ledger = Ledger(Path(job.ledger), job.life)
    async with open_checkpointer(job.url) as store:
        agent = lab_agent(store, ledger, Path(job.files), delay=job.delay, pause=job.pause)
        retries = Retries(most=10**6, first=0.2, longest=2.0)
        worker = Worker(agent, store=store, concurrency=job.concurrency, label=job.life, poll=0.3, retries=retries)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drain)
        await worker.run()
