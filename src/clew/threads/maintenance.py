"""Holding a thread for a moment without working on it: to restore its files, or to take it from a holder that is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from clew.checkpointers import Checkpointer, Lease
from clew.errors import LeaseLost, ThreadNotFound, Unavailable
from clew.log import Fold, Logged, StatusChanged
from clew.threads.leases import check_free, new_lease
from clew.threads.reader import load, or_new
from clew.threads.thread import Thread
from clew.threads.writer import LogWriter

__all__ = ["put_aside", "unlock", "upkeep"]


@asynccontextmanager
async def upkeep(
    checkpointer: Checkpointer, thread_id: str, label: str, *, takeover: bool = False
) -> AsyncIterator[Thread]:
    """A thread that exists, opened, which stands afterwards as it stood before: waiting, failed or done.

    One that was running and whose process is gone is interrupted then, as it is shown already. Whoever says another status
    meanwhile is left the last word. `ThreadBusy` if a live process holds it, unless `takeover`.
    """
    before = await load(checkpointer, thread_id)
    async with Thread.open(checkpointer, thread_id, label=label, takeover=takeover) as thread:
        was, now = before.state, thread.checkpoint
        yield thread
        nobody_between = msgspec.structs.replace(now, status=was.status, reason=was.reason) == was
        if nobody_between and was.status != "running" and thread.checkpoint.status == "running":
            await thread.append(StatusChanged(was.status, was.reason))


async def unlock(checkpointer: Checkpointer, thread_id: str, *, takeover: bool = False) -> Lease | None:
    """Take a thread's lease and give it back, so that nobody has to wait for it. Returns the lease that was there.

    Where nobody holds it nothing is written. From a live holder it is taken only with `takeover`, else that is
    `ThreadBusy`: the holder gets `LeaseLost` at its next append, and what it was doing may go on for that long.
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
    """Append these to a thread that nobody holds, or make a thread of them; durable when it returns.

    No lease is taken for it: a crash that is on record stays one, and a thread that is new is not begun. `ThreadBusy` if a
    live process holds it.
    """
    for _ in range(_TRIES):
        loaded = await or_new(load(checkpointer, thread_id), thread_id, "interrupted")
        check_free(loaded.head)
        writer = LogWriter(checkpointer, loaded.head, Fold(loaded.state), new_lease(), loaded.size)
        writer.accept(entries)
        try:
            await writer.release()
        except LeaseLost:  # whoever was there first may hold it now
            continue
        return
    raise Unavailable(f"thread {thread_id!r} moved on {_TRIES} times while something was put on its record. Try again.")
