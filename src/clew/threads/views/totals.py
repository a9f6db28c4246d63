"""What the threads of a store add up to, from their heads alone: by status, by agent, by day."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from datetime import date, tzinfo
from pathlib import Path

import msgspec

from clew.checkpointers import Checkpointer, Head

__all__ = ["Total", "Totals", "add_up", "stored_bytes"]


class Total(msgspec.Struct, kw_only=True):
    """Some threads together."""

    threads: int = 0
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    """Of those whose price is known."""
    unpriced: int = 0
    """Threads of which nobody knows what they cost."""

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
    """All threads, and the same by what they have in common.

    A head knows what its thread cost and not when: all of it counts for the day of the thread's last change. Forks start
    at nothing and agents that are tools have threads of their own, so nothing is counted twice.
    """

    all: Total = msgspec.field(default_factory=Total)
    by_status: dict[str, Total] = {}
    by_agent: dict[str, Total] = {}
    by_day: dict[date, Total] = {}


async def add_up(heads: AsyncIterable[Head], zone: tzinfo | None = None) -> Totals:
    """Days are those of this time zone; without one, of this machine."""
    totals = Totals()
    async for head in heads:
        day = head.updated_at.astimezone(zone).date()
        for total in (
            totals.all,
            totals.by_status.setdefault(head.status, Total()),
            totals.by_agent.setdefault(head.agent, Total()),
            totals.by_day.setdefault(day, Total()),
        ):
            total.add(head)
    return totals


def stored_bytes(checkpointer: Checkpointer) -> int | None:
    """How much room the store takes, where it lies in files of this machine; None where nobody here can tell."""
    if not checkpointer.own_files:
        return None
    return sum(_size(path) for own in checkpointer.own_files for path in _files(own))


def _files(path: Path) -> Iterable[Path]:
    return path.rglob("*") if path.is_dir() else (path,)


def _size(path: Path) -> int:
    """A file may go while it is looked at: stores move and delete their own."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
