"""What a worker tells of itself: events as they happen, and numbers for those who watch it."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Counts", "Ended", "Pulse", "Taken", "WorkerEvent"]


class Taken(msgspec.Struct, frozen=True):
    """A worker has begun to run a thread."""

    thread_id: str
    agent: str
    tries: int


class Ended(msgspec.Struct, frozen=True):
    """A run of a worker has ended. `status` is that of the thread: `queued` if it is tried again, `failed` if it failed or
    was set aside, and `busy` if somebody else had it or has taken it over."""

    thread_id: str
    agent: str
    status: Literal["done", "waiting", "interrupted", "failed", "queued", "busy"]
    reason: str = ""
    seconds: float = 0.0
    turns: int = 0


WorkerEvent = Taken | Ended


class Counts(msgspec.Struct):
    """What a worker has done since it was made."""

    taken: int = 0
    recovered: int = 0
    """How many threads it took from workers that had died."""
    limits_reached: int = 0
    """How often it could not run a thread because as many of its kind were running as may."""
    ended: dict[str, int] = {}
    """How many runs ended, by the status of the thread."""


class Pulse(msgspec.Struct):
    """How a worker is doing. Times are those of `time.monotonic`; None for what has not happened yet."""

    round_at: float | None = None
    """When its loop last went round."""
    looked_at: float | None = None
    """When the store last answered it."""
    is_store_ok: bool = False
    """Whether the store answered its last look."""
    oldest_due: float = 0.0
    """For how many seconds the thread that waits longest had been due at the last look into the queue; 0 if none was."""
