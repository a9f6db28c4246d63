"""A pool of processes that take queued threads from a store and run their agents. The store is the queue, and the lease of
a thread is the only coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.workers.events import Ended, Taken, WorkerEvent
    from clew.workers.queue import enqueue
    from clew.workers.retries import Retries
    from clew.workers.worker import Worker

_HOMES = {
    "Ended": "clew.workers.events",
    "Retries": "clew.workers.retries",
    "Taken": "clew.workers.events",
    "Worker": "clew.workers.worker",
    "WorkerEvent": "clew.workers.events",
    "enqueue": "clew.workers.queue",
}

__all__ = ["Ended", "Retries", "Taken", "Worker", "WorkerEvent", "enqueue"]

__getattr__, __dir__ = exports(__name__, _HOMES)
