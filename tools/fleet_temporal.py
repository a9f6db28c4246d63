"""The Temporal side of `make fleet`: a worker, and the function that sends prompts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

from temporalio.client import Client
from temporalio.worker import Worker

from clew.integrations.temporal import ClewPlugin, thread
from tools.fleet_agents import agents


async def sender(address: str) -> Callable[[str, str], Awaitable[None]]:
    """Return a function that sends a prompt to a thread of the first agent, by way of Temporal."""
    client = await Client.connect(address, plugins=[ClewPlugin(*agents)])

    async def send(thread_id: str, prompt: str) -> None:
        await thread(client, agents[0], thread_id).post(prompt)

    return send


async def main(name: str) -> None:
    client = await Client.connect(os.environ["CLEW_FLEET_TEMPORAL"], plugins=[ClewPlugin(*agents)], identity=name)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Worker(client, task_queue="clew"):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # the SDK sometimes aborts while the interpreter exits
