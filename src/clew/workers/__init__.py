"""A pool of processes that take queued threads from a store and run their agents. The store is the queue, and the lease of
a thread is the only coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.workers.queue import enqueue
    from clew.workers.retries import Retries
    from clew.workers.worker import Worker

_HOMES = {
    "Retries": "clew.workers.retries",
    "Worker": "clew.workers.worker",
    "enqueue": "clew.workers.queue",
}

__all__ = ["Retries", "Worker", "enqueue"]

__getattr__, __dir__ = exports(__name__, _HOMES)
