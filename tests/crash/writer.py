"""A process that writes as fast as it can and says what it does: `start` before each operation and `ack` after it.

`python -m tests.crash.writer '{"url": …}'` does one job; without an argument it is a warm parent that reads jobs from its
input, forks a child for each and says when the child has ended: a child starts in a moment, and the parent never opens
a store.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sys
from typing import Any

import apsw
import msgspec

from clew._runtime import files
from clew.checkpointers import Checkpointer, Head, open_checkpointer
from clew.checkpointers.sqlite import engine, packs
from clew.checkpointers.sqlite import file as sqlite_file
from clew.errors import ClewError, Corrupt, Unavailable
from tests.crash.work import Op, blobs_of, frames_of, head_of, next_op

__all__ = ["Job"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer is to do."""

    url: str
    seed: int = 0
    tasks: int = 1
    """Sessions that write side by side, each to threads of its own."""
    threads: int = 3
    operations: int | None = None
    """How many of each task; None for as many as it gets to do."""
    reopen_after: int = 0
    """Close the store and open it again after this many operations."""
    checkpoint_pages: int = 0
    """Fold SQLite's WAL back into the database after this many pages, that it happens often."""
    file_size: int = 0
    """The most bytes that a file may have. Once this stops an append, the limit goes and the append is made again."""
    is_failing: bool = False
    """Whether the disk fails some calls: then an append that finds the store damaged is made again, too."""
    sabotage: str = ""
    """What to break, to show that it is found."""


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def write(job: Job) -> None:
    """Everything this job asks for, with the store opened anew as often as it says."""

    async def session(name: int, store: Checkpointer, count: int | None) -> None:
        heads: dict[str, Head | None] = {}
        while count is None or count > 0:
            thread = f"{name}-{dice.randrange(job.threads)}"
            try:
                op = next_op(dice, thread, heads[thread] if thread in heads else await store.head(thread))
            except (Unavailable, Corrupt) as error:  # not even the store itself fits on the disk
                if isinstance(error, Corrupt) and not job.is_failing:
                    raise
                lift_limits(error)
                continue
            await perform(store, op, job)
            heads[thread] = None if op.kind == "delete" else head_of(op)
            count = None if count is None else count - 1

    dice = random.Random(job.seed)
    left = job.operations
    while left is None or left > 0:
        now = min(left, job.reopen_after) if left and job.reopen_after else left
        async with open_checkpointer(job.url) as store, asyncio.TaskGroup() as group:
            for name in range(job.tasks):
                group.create_task(session(name, store, now))
        left = None if left is None else left - (now or 0)


async def perform(store: Checkpointer, op: Op, job: Job) -> None:
    """Do this, and again without a limit if the disk is full or has failed."""
    for _ in range(8 if job.is_failing else 1):  # strace fails a call in each thread of the process
        try:
            await attempt(store, op, job.sabotage)
            return
        except (Unavailable, Corrupt) as error:
            if isinstance(error, Corrupt) and not job.is_failing:
                raise
            say(f"unavailable {op}")
            lift_limits(error)
    await attempt(store, op, job.sabotage)


def lift_limits(error: ClewError) -> None:
    print(error, file=sys.stderr)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


async def attempt(store: Checkpointer, op: Op, sabotage: str) -> None:
    blobs = blobs_of(op)
    if blobs:
        await store.put_blobs(blobs)
        for digest in blobs:
            say(f"kept {digest}")
    say(f"start {op}")
    if sabotage == "acknowledge early":
        say(f"ack {op}")
    if op.kind == "delete":
        await store.delete(op.thread)
    elif sabotage == "append by halves" and op.frames:
        for number, frame in enumerate(frames_of(op)):
            head = msgspec.structs.replace(head_of(op), frames=op.at + number + 1)
            await store.append(op.thread, [frame], at=op.at + number, head=head, refs=blobs)
    else:
        await store.append(op.thread, frames_of(op), at=op.at, head=head_of(op), refs=blobs)
    say(f"ack {op}")


def prepare(job: Job) -> None:
    """Set the limits, and break what is to be broken."""
    opening: Any = sqlite_file
    configure = opening.configure

    def configured(connection: apsw.Connection) -> None:
        configure(connection)
        if job.checkpoint_pages:
            connection.execute(f"PRAGMA wal_autocheckpoint = {job.checkpoint_pages}")
        if job.sabotage == "sync no files":
            connection.execute("PRAGMA synchronous = OFF")

    opening.configure = configured
    packing: Any = packs  # often, so that it is among what is cut off
    opened: Any = engine
    packing.FULL = opened.FULL = opened.PACK_AFTER = 8192
    opened.LEAST, opened.CHECKPOINT_AFTER = 2048, 24
    if job.sabotage == "sync no files":
        sync = files.sync
        files.sync = lambda fd: None if "/threads/" in os.readlink(f"/proc/self/fd/{fd}") else sync(fd)
    if job.sabotage == "sync no folders":
        files.sync_folder = lambda path: None
    if job.file_size:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (job.file_size, resource.RLIM_INFINITY))


def run(job: Job) -> None:
    prepare(job)
    asyncio.run(write(job))


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
    run(msgspec.json.decode(sys.argv[1], type=Job)) if len(sys.argv) > 1 else serve()
