"""What is put on a thread's record by one who does not work on it: no lease is taken, and it stands as before."""

from __future__ import annotations

from clew.checkpointers import Checkpointer
from clew.errors import LeaseLost, Unavailable
from clew.log import Fold, Logged
from clew.threads.leases import check_free, new_lease
from clew.threads.loading import load, or_new
from clew.threads.writer import LogWriter

__all__ = ["put_aside"]

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
