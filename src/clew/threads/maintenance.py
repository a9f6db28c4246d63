"""Hold or change a thread for a moment without running an agent on it: to restore its files, to unlock it, or to append
entries to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from clew.checkpointers import Checkpointer, Head, Lease
from clew.errors import LeaseLost, ThreadNotFound, Unavailable
from clew.log import Checkpoint, Fold, Logged, StatusChanged
from clew.threads.leases import new_lease, wait_until_free
from clew.threads.reader import load, or_new
from clew.threads.takeover import without_predecessor
from clew.threads.thread import Thread
from clew.threads.writer import LogWriter

__all__ = ["put_aside", "put_aside_by", "unlock", "upkeep"]


@asynccontextmanager
async def upkeep(
    checkpointer: Checkpointer, thread_id: str, label: str, *, takeover: bool = False
) -> AsyncIterator[Thread]:
    """Open an existing thread for maintenance, as an async context manager.

    Opening sets the thread's status to running. On exit the earlier status is set again, unless the block has set a new
    one. In two cases the status becomes interrupted instead: if the earlier status was running (left so by a process
    that is gone), or if another process changed the thread after its status was read and before it was opened. Raises
    `ThreadBusy` if a live process holds the thread, unless `takeover` is set. `label` says what the maintenance is for.
    """
    before = await load(checkpointer, thread_id)
    async with Thread.open(checkpointer, thread_id, label=label, takeover=takeover) as thread:
        was, now = without_predecessor(before.state), without_predecessor(thread.checkpoint)
        yield thread
        nobody_between = msgspec.structs.replace(now, status=was.status, reason=was.reason) == was
        if nobody_between and was.status != "running" and thread.checkpoint.status == "running":
            await thread.append(StatusChanged(was.status, was.reason))


async def unlock(checkpointer: Checkpointer, thread_id: str, *, takeover: bool = False) -> Lease | None:
    """Take a thread's lease from a process that is gone and give it back, so that nobody has to wait for it to expire.

    Returns the lease that was held before. If nobody held one, returns None and writes nothing. Raises `ThreadBusy` if
    the holder is alive, unless `takeover` is set. With `takeover` the live holder gets `LeaseLost` at its next append,
    and may go on with its work until then.
    """
    head = await checkpointer.head(thread_id)
    if head is None:
        raise ThreadNotFound(thread_id)
    if head.lease is not None:
        async with upkeep(checkpointer, thread_id, "unlocking", takeover=takeover):
            pass
    return head.lease


_TRIES = 20


async def put_aside(checkpointer: Checkpointer, thread_id: str, *entries: Logged) -> None:
    """Append entries to a thread that no live process holds, or create the thread with them. They are durable when this
    returns.

    Takes no lease and does not change the thread's status: a thread that crashed still shows as crashed, and a new one
    does not show as running. Raises `ThreadBusy` if a live process holds the thread, and `Unavailable` if other
    processes changed it during each of 20 tries.
    """
    await put_aside_by(checkpointer, thread_id, lambda head, state: entries)


async def put_aside_by(
    checkpointer: Checkpointer,
    thread_id: str,
    decide: Callable[[Head, Checkpoint], Sequence[Logged]],
    *,
    wait: float | None = None,
) -> Head:
    """Append entries to a thread that no live process holds, or create the thread with them, as `put_aside` does. Return
    the thread's head.

    `decide` gets the thread's head and state, and returns the entries; with none, nothing is written. It is called again
    if another process changed the thread meanwhile. `wait` is the most seconds to wait for a process that may still hold
    the thread; if more could be needed, raises `ThreadBusy` at once. With None, waits as long as needed.
    """
    for _ in range(_TRIES):
        loaded = await or_new(load(checkpointer, thread_id), thread_id, "interrupted")
        await wait_until_free(checkpointer, loaded.head, wait)
        entries = decide(loaded.head, loaded.state)
        if not entries:
            return loaded.head
        writer = LogWriter(checkpointer, loaded.head, Fold(loaded.state), new_lease(), loaded.size)
        writer.accept(entries)
        try:
            await writer.release()
        except LeaseLost:  # another writer was first and may hold the thread now
            continue
        return writer.head
    raise Unavailable(f"thread {thread_id!r} was changed by others {_TRIES} times during one append. Try again.")
