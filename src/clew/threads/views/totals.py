"""Add up the threads of a store from their heads alone: by status, agent and day."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from datetime import date, datetime, tzinfo
from pathlib import Path

import msgspec

from clew._runtime.clock import now
from clew.checkpointers import Checkpointer, Head

__all__ = ["Total", "Totals", "add_up", "stored_bytes"]


class Total(msgspec.Struct, kw_only=True):
    """The sums over a group of threads: their number, turns, tokens and cost."""

    threads: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    """Sum of the known costs, in US dollars. Threads whose cost is unknown are counted in `unpriced` instead."""
    unpriced: int = 0
    """Number of threads whose cost is unknown."""

    def add(self, head: Head) -> None:
        self.threads += 1
        self.turns += head.turns
        self.input_tokens += head.input_tokens
        self.output_tokens += head.output_tokens
        if head.cost_usd is None:
            self.unpriced += 1
        else:
            self.cost_usd += head.cost_usd


class Totals(msgspec.Struct, kw_only=True):
    """The sums over all threads, and over the threads with the same status, agent or day.

    A head holds a thread's cost but not when it arose, so all of it counts for the day of the thread's last change.
    Forks start at zero and sub-agents have threads of their own, so nothing is counted twice.
    """

    all: Total = msgspec.field(default_factory=Total)
    by_status: dict[str, Total] = {}
    by_agent: dict[str, Total] = {}
    by_day: dict[date, Total] = {}
    queued: int = 0
    """How many threads are in the queue of the workers and not running."""
    oldest_due: datetime | None = None
    """Since when the thread that has waited longest for a worker could have been taken; None if none is due."""


async def add_up(heads: AsyncIterable[Head], zone: tzinfo | None = None) -> Totals:
    """Add up the threads with these heads, and return the sums of turns, tokens and costs: of all threads, and of those
    with the same status, agent or day.

    A thread counts for the day of its last change in the time zone `zone`, by default this machine's.
    """
    totals, moment = Totals(), now()
    async for head in heads:
        day = head.updated_at.astimezone(zone).date()
        for total in (
            totals.all,
            totals.by_status.setdefault(head.status, Total()),
            totals.by_agent.setdefault(head.agent, Total()),
            totals.by_day.setdefault(day, Total()),
        ):
            total.add(head)
        if head.status == "queued" and head.due is not None and head.queue is not None:
            totals.queued += 1
            since = max(head.due, head.queue.queued_at)
            if since <= moment and (totals.oldest_due is None or since < totals.oldest_due):
                totals.oldest_due = since
    return totals


def stored_bytes(checkpointer: Checkpointer) -> int | None:
    """Return how many bytes the store takes on this machine, or None if it is not kept in files here."""
    if not checkpointer.own_files:
        return None
    return sum(_size(path) for own in checkpointer.own_files for path in _files(own))


def _files(path: Path) -> Iterable[Path]:
    return path.rglob("*") if path.is_dir() else (path,)


def _size(path: Path) -> int:
    """Return the size of a file in bytes. 0 if it is not a regular file, or if the store deleted it meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
