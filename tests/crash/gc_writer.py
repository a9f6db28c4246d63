"""A process that creates, forks and deletes threads with shared values, as fast as it can, until it is told to stop.

`python -m tests.crash.gc_writer URL SEED` says what is wrong as soon as it sees it, and `done` with what it did at the end.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import sys
from datetime import UTC, datetime

from clew.checkpointers import Checkpointer, Head, open_checkpointer
from clew.errors import ClewError, MissingBlob
from clew.log import FIRST, MessageAdded, encode_entries, encode_frame
from clew.log.blobs import pack_blob, pack_tree
from clew.messages import assistant, user
from clew.threads import Thread
from clew.threads.ops.gc import below

__all__ = ["check", "dangling"]

KEPT = 4
"""Threads that a writer has at most: many a value is nobody's any more before long."""


def large(dice: random.Random) -> str:
    """One of a few values that all writers share, or of many that hardly two of them do at a time."""
    number = dice.randrange(12) if dice.random() < 0.5 else dice.randrange(500)
    return f"{number} is a value that many share. " * 2500


async def create(store: Checkpointer, name: str, dice: random.Random) -> None:
    async with Thread.open(store, name) as thread:
        for _ in range(dice.randint(1, 3)):
            text = large(dice)
            await thread.append(MessageAdded(user(text)), MessageAdded(assistant("read")))


async def create_with_tree(store: Checkpointer, name: str, dice: random.Random) -> None:
    """A thread that points at a tree of blobs. Half of the time it asks first what is there, and puts the rest."""
    files = [pack_blob(large(dice).encode()) for _ in range(3)]
    inner = pack_tree(b"a folder", leaves=[files[0][0], files[1][0]])
    outer = pack_tree(b"the workspace", [inner[0]], [files[2][0]])
    blobs = dict([*files, inner, outer])
    if dice.random() < 0.5:
        missing = await store.missing_blobs(blobs)
        blobs = {digest: blobs[digest] for digest in missing}
    await store.put_blobs(blobs)
    frame = encode_frame([encode_entries([MessageAdded(user("look at my files"))])], previous=FIRST, thread_id=name)
    now = datetime.now(UTC)
    head = Head(
        thread_id=name,
        frames=1,
        log_id=secrets.token_hex(16),
        status="interrupted",
        digest=frame.digest.hex(),
        title="look at my files",
        created_at=now,
        updated_at=now,
    )
    await store.append(name, [frame.data], at=0, head=head, refs=[outer[0]])


async def dangling(store: Checkpointer, thread_id: str) -> str | None:
    """What is wrong with a thread that nobody deletes meanwhile: something it reaches is not there."""
    try:
        await Thread.load(store, thread_id)
        refs = await below(store, await store.refs(thread_id))
        if absent := set(refs) - (await store.get_blobs(refs)).keys():
            raise MissingBlob(absent, thread_id=thread_id)
    except ClewError as error:
        return f"thread {thread_id!r}: {error!r}"
    return None


async def check(store: Checkpointer, head: Head) -> str | None:
    """The same for a thread of somebody else, who may delete it at any moment."""
    wrong = await dangling(store, head.thread_id)
    again = await store.head(head.thread_id)
    return wrong if again is not None and again.log_id == head.log_id else None


async def step(store: Checkpointer, name: str, mine: list[str], dice: random.Random) -> None:
    """One thing done to the threads of this writer."""
    action = dice.choice(["create", "tree", "fork", "fork", "check"]) if len(mine) < KEPT else "delete"
    if action == "create":
        await create(store, name, dice)
        mine.append(name)
    elif action == "tree":
        await create_with_tree(store, name, dice)
        mine.append(name)
    elif action == "delete":
        await store.delete(mine.pop(dice.randrange(len(mine))))
    elif mine and action == "check":
        if wrong := await dangling(store, dice.choice(mine)):
            print(f"wrong {wrong}", flush=True)
    elif mine:
        await fork(store, dice.choice(mine), name, mine, dice)


async def fork(store: Checkpointer, source: str, name: str, mine: list[str], dice: random.Random) -> None:
    async with Thread.open(store, source) as thread:
        if thread.checkpoint.turns == 0:  # it points at a tree, which is not in its log
            return
        await thread.fork(name)
        mine.append(name)
        if dice.random() < 0.5:  # the fork outlives what it was taken from
            await thread.delete()
            mine.remove(source)


async def work(url: str, seed: str) -> None:
    dice = random.Random(seed)
    mine: list[str] = []
    done = 0
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    async with open_checkpointer(url) as store:
        await store.head("none")
        print("ready", flush=True)
        while not stop.done():
            try:
                await step(store, f"{seed}-{done}", mine, dice)
            except (
                ClewError
            ) as error:  # nothing was written: a machine may be so slow that a put is older than the grace
                print(f"refused {error!r}", flush=True)
            done += 1
    print(f"done {done}", flush=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2]))
