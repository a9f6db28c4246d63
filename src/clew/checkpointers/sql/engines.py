"""Shares one engine (an object that holds the connections to one store) among all checkpointers that use the same store
on the same event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from clew._runtime import forks

__all__ = ["Engines"]


class Shareable(Protocol):
    """An engine (the shared connections to one store) that several checkpointers use. `users` is the number of these
    checkpointers. When the last of them has released the engine, `Engines.close` calls `stop`, which closes the
    connections."""

    address: Any
    loop: asyncio.AbstractEventLoop
    users: int

    async def stop(self) -> None: ...


A = TypeVar("A", bound=Hashable)
E = TypeVar("E", bound=Shareable)


class Engines(Generic[A, E]):
    """The open engines of this process, one for each event loop and address. An engine holds the shared connections to
    one store. A forked child process never gets an engine of its parent."""

    def __init__(self, make: Callable[[A, asyncio.AbstractEventLoop], E]) -> None:
        self._make = make
        self._open: dict[tuple[asyncio.AbstractEventLoop, int, A], E] = {}

    def open(self, address: A, loop: asyncio.AbstractEventLoop) -> E:
        """Return the engine of the store at this address on this event loop, and count one more user of it. Opens the
        engine if there is none. Release it with `close`."""
        for stale in [key for key in self._open if key[0].is_closed()]:
            del self._open[stale]
        key = loop, forks.generation, address
        engine = self._open.get(key)
        if engine is None:
            engine = self._open[key] = self._make(address, loop)
        engine.users += 1
        return engine

    async def close(self, engine: E) -> None:
        """Release an engine (the shared connections to one store) that `open` returned. When its last user releases it,
        forget the engine and close its connections."""
        engine.users -= 1
        if not engine.users:
            self._open.pop((engine.loop, forks.generation, engine.address), None)
            await engine.stop()
