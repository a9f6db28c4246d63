"""One machine of a fleet: a process that runs whichever threads it can get, until all of them are done.

What really happened is in a file of its own, a line each and synced: effects, and what was acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from clew.agent import Agent, CheckpointSaved
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.errors import LeaseLost, ThreadBusy, Unavailable
from clew.testing import Response, ScriptedModel, call
from clew.tools import NOT_DONE, NotDone, ToolContext, tool

FULL = os.environ.get("CLEW_CRASH") == "full"
TURNS = 8 if FULL else 4
"""Calls of the tool in each thread; a last word follows."""
THINKING = 1.0 if FULL else 0.1
"""Seconds that the model takes: so long that there is work for as long as there are kills."""
AT_ONCE = 4
"""Threads that one worker runs at a time."""


def happened(folder: Path, line: str) -> bool:
    """Whether any worker wrote this down, dead ones included."""
    return any(line in path.read_text().splitlines() for path in folder.glob("*.effects"))


class Worker:
    def __init__(self, store: Checkpointer, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def _write(self, kind: str, line: str) -> None:
        with (self._folder / f"{os.getpid()}.{kind}").open("a") as out:
            out.write(f"{line}\n")
            out.flush()
            os.fsync(out.fileno())

    def agent(self) -> Agent:
        def was_done(ctx: ToolContext, number: int) -> str | NotDone:
            return f"did {number}" if happened(self._folder, f"{ctx.thread_id} {number}") else NOT_DONE

        @tool(effect="once", reconcile=was_done)
        async def work(number: int, ctx: ToolContext) -> str:
            self._write("effects", f"{ctx.thread_id} {number}")
            ctx.state["pid"] = os.getpid()
            return f"did {number}"

        script: list[Response] = [*(call("work", number=number) for number in range(TURNS)), "All is done."]
        return Agent(ScriptedModel(script, delay=THINKING), name="fleet", tools=[work], checkpointer=self._store)

    async def run(self, thread_id: str) -> None:
        """Go on with a thread, if nobody else does. One that is done by now stays as it is."""
        try:
            async for event in self.agent().resume(thread_id=thread_id):
                if isinstance(event, CheckpointSaved):
                    self._write("acknowledged", f"{thread_id} {event.turn}")
        except (ThreadBusy, LeaseLost, Unavailable):
            await asyncio.sleep(random.uniform(0, 0.2))


async def main(folder: str, url: str, threads: str) -> None:
    async with open_checkpointer(url) as store:
        worker = Worker(store, Path(folder))
        limit = asyncio.Semaphore(AT_ONCE)

        async def run(number: int) -> None:
            async with limit:
                await worker.run(f"thread-{number}")

        while True:
            left = [number for number in range(int(threads)) if not await _is_done(store, f"thread-{number}")]
            if not left:
                return
            random.shuffle(left)
            await asyncio.gather(*map(run, left[: 4 * AT_ONCE]))


async def _is_done(store: Checkpointer, thread_id: str) -> bool:
    try:
        head = await store.head(thread_id)
    except Unavailable:
        return False
    return head is not None and head.status == "done"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
