"""A process that takes or restores a snapshot, and says `start` and `done`: a warm parent that forks a child for each job.

It works in small batches, so that there are many moments at which some of the work is done and some is not.
`python -m tests.crash.workspace_worker` reads jobs from its input and says when the child of each has ended. The parent
never opens a store.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import msgspec

from clew import Thread
from clew.checkpointers import open_checkpointer
from clew.workspace import Workspace, apply, pack
from clew.workspace import restore as restoring
from clew.workspace import snapshot as snapshotting

__all__ = ["THREAD", "Job"]

THREAD = "user-42"
WARM = (restoring, snapshotting)
"""What a workspace imports when it is first needed: a child has it from its parent."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do."""

    url: str
    folder: str
    restore: str = ""
    """The digest to restore; without one, a snapshot is taken, and the thread's log names it."""
    warm: bool = False
    """Look at everything before it starts, so that a restore finds little to read."""
    stay: bool = False
    """Wait to be killed once it is done."""


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def work(job: Job) -> None:
    async with open_checkpointer(job.url) as store:
        await store.head(THREAD)
        workspace = Workspace(job.folder, store)
        if job.warm:
            await workspace.snapshot()
        say("start")
        began = time.monotonic()
        if job.restore:
            await workspace.restore(job.restore, setuid=True)
        else:
            ref = await workspace.snapshot()
            async with Thread.open(store, THREAD) as thread:
                await thread.append(ref.entry())
        say(f"done {time.monotonic() - began}")
        if job.stay:
            await asyncio.Event().wait()


def serve() -> None:
    """A child for each job, one after the other."""
    pack._BATCH = apply._BATCH_BYTES = 2**19
    for line in sys.stdin:
        job = msgspec.json.decode(line, type=Job)
        child = os.fork()
        if child == 0:
            say(f"pid {os.getpid()}")
            asyncio.run(work(job))
            sys.exit()
        _, status = os.waitpid(child, 0)
        say(f"exit {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    serve()
