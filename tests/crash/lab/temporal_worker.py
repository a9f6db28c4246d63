"""One worker of the lab on Temporal, which works until SIGTERM shuts it down."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from clew.agent import Agent, RunResult
from clew.checkpointers import open_checkpointer
from clew.integrations.temporal import ClewPlugin
from clew.integrations.temporal.activities import AgentActivities
from clew.integrations.temporal.payloads import Work
from tests.crash.lab.agent import lab_agent
from tests.crash.lab.ledger import Ledger
from tests.crash.lab.worker import Job, die

__all__ = ["work"]


async def work(job: Job) -> None:
    ledger, files = Ledger(Path(job.ledger), job.life), Path(job.files)
    if job.dies:
        _die_now_and_then(ledger, job.dies)
    async with open_checkpointer(job.url) as store:
        agent = lab_agent(store, ledger, None, delay=job.delay, pause=job.pause)
        plugin = ClewPlugin(agent, workspaces=lambda thread_id: files / thread_id)
        client = await _connected(job.temporal, plugin)
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        async with Worker(
            client, task_queue=plugin.task_queue, identity=job.life, max_concurrent_activities=job.concurrency
        ):
            await stopped.wait()
    os._exit(0)  # Temporal's SDK aborts now and then while Python ends


async def _connected(address: str, plugin: ClewPlugin) -> Client:
    """Return a client, once the server answers: it may be away at this moment."""
    while True:
        try:
            return await Client.connect(address, plugins=[plugin])
        except RuntimeError:
            await asyncio.sleep(0.5)


def _die_now_and_then(ledger: Ledger, chance: float) -> None:
    """Have this process kill itself at times between the last append of a run and the completion of its activity."""
    run = AgentActivities._run

    async def run_and_die(self: AgentActivities, agent: Agent, work: Work) -> RunResult:
        result = await run(self, agent, work)
        if random.random() < chance:
            die(ledger)
        return result

    AgentActivities._run = run_and_die  # type: ignore[method-assign]
