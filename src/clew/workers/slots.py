"""Limits that hold for all workers together: so many slots for each limit, and whoever runs a thread holds one of them.

A slot is a hidden thread in the store, and to hold it is to hold its lease. So the slot of a worker that died is free again
as soon as its lease has ended, and nobody has to count.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from clew.checkpointers import Checkpointer
from clew.errors import LeaseLost, ThreadBusy
from clew.log import StatusChanged
from clew.threads import Thread

__all__ = ["NoSlot", "slots"]

_PREFIX = "clew:slot:"
_LONGEST = 1000
"""A slot is deleted when it is given back with more frames than this, and made again by the next holder."""


class NoSlot(Exception):
    """All slots of the limit called `name` are held: as many threads run as may."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@asynccontextmanager
async def slots(checkpointer: Checkpointer, limits: Iterable[tuple[str, int]], label: str) -> AsyncIterator[None]:
    """Hold one slot of each of these limits inside the context. A limit is a name and how many slots it has. Raises
    `NoSlot` at once if one has none that is free. `label` names this process in the leases of the slots."""
    async with AsyncExitStack() as stack:
        for name, most in limits:
            await _hold_one(stack, checkpointer, name, most, label)
        yield


async def _hold_one(stack: AsyncExitStack, checkpointer: Checkpointer, name: str, most: int, label: str) -> None:
    for number in random.sample(range(most), most):
        try:
            await stack.enter_async_context(_slot(checkpointer, f"{_PREFIX}{name}:{number}", label))
        except ThreadBusy:
            continue
        return
    raise NoSlot(name)


@asynccontextmanager
async def _slot(checkpointer: Checkpointer, thread_id: str, label: str) -> AsyncIterator[None]:
    opened = Thread.open(checkpointer, thread_id, label=label, wait=0.0)
    try:
        async with opened as thread:
            yield
            if thread.head.frames > _LONGEST:
                await thread.delete()
            else:
                await thread.append(StatusChanged("done"))
    except LeaseLost:  # somebody took the slot from a process that was frozen; its run has lost its thread too
        opened.abandon()
