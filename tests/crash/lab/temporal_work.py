"""The work of a lab whose workers are Temporal's: prompts are sent with handles of threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError

from clew.checkpointers import Checkpointer
from clew.integrations.temporal import ClewPlugin, ThreadHandle, thread
from clew.integrations.temporal.payloads import Limits
from tests.crash.lab.agent import lab_agent
from tests.crash.lab.ledger import Ledger
from tests.crash.lab.work import Work, sent
from tests.limits import PATIENCE

__all__ = ["HEARTBEAT", "TemporalWork"]

HEARTBEAT = 10.0
"""Seconds after which Temporal takes a worker for dead."""


class TemporalWork(Work):
    """Prompts for the threads of one store, which workers of Temporal work on."""

    def __init__(self, store: Checkpointer, threads: int, address: str) -> None:
        super().__init__(store, threads)
        self._address = address
        self._agent = lab_agent(store, Ledger(Path("unused")), None)
        self._client: Client | None = None

    async def _handle(self, thread_id: str) -> ThreadHandle:
        if self._client is None:
            self._client = await Client.connect(self._address, plugins=[ClewPlugin(self._agent, workspaces="unused")])
        return thread(self._client, self._agent, thread_id, limits=Limits(heartbeat_seconds=HEARTBEAT))

    async def give(self, thread_id: str, text: str, prompt_id: str) -> None:
        handle = await self._handle(thread_id)
        await sent(partial(_answered, partial(handle.post, text, prompt_id=prompt_id)))

    async def nudge(self, thread_id: str) -> None:
        handle = await self._handle(thread_id)
        await sent(partial(_answered, handle.post))

    async def _until_done(self, said: Callable[[], str]) -> None:
        left, deadline = list(self.texts), time.monotonic() + 2 * PATIENCE
        while left:
            handle = await self._handle(left[-1])
            try:
                status = await handle.status()
            except RPCError:
                status = None
            if status is not None and status.pending == ():
                left.pop()
                continue
            assert time.monotonic() < deadline, f"{len(left)} threads are not done: {status}\n{said()}"
            await asyncio.sleep(0.2)
        await super()._until_done(said)


async def _answered(send: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Make this call until Temporal's server has answered it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await send()
        except RPCError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.5)
        else:
            return
