"""Bells: they tell those who wait for work in a store that there is some, so that they need not look again and again.

A bell is best effort, and no part of the contract of a store: a ring may be lost, and then the next look finds the work.
PostgreSQL, Redis and Valkey have a bell that is heard on every machine. Every other store has one that is heard in the
process that rings it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from blake3 import blake3

from clew.checkpointers.base import Checkpointer
from clew.checkpointers.wrapper import WrappedCheckpointer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["Bell", "bell_name", "bell_of", "listen", "ring_soon"]

log = logging.getLogger("clew.checkpointers")

_APART = 0.05
"""Seconds between two calls of a listener at least, so that many rings cause few looks at the store."""
_FIRST, _LONGEST = 0.2, 30.0
"""The shortest and the longest pause, in seconds, before a listener connects again after its connection broke."""


class Bell(ABC):
    """What a store can do in addition to keeping threads: tell other processes at once that there is something to look
    for."""

    @abstractmethod
    async def ring(self) -> None:
        """Tell all who listen now. May raise any error, or tell nobody."""

    @abstractmethod
    def hear(self) -> AsyncIterator[None]:
        """Yield once when the connection stands, because something may have been missed before, and then after each
        ring. Raises any error when the connection breaks. Ends by itself if the bell cannot be heard from here."""


class _OwnBell(Bell):
    """A bell that is heard in this process alone, by all who have opened the same store."""

    def __init__(self, place: object) -> None:
        self._place = place

    async def ring(self) -> None:
        with _lock:
            listening = list(_listening.get(self._place, ()))
        for loop, event in listening:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def hear(self) -> AsyncIterator[None]:
        me = asyncio.get_running_loop(), asyncio.Event()
        with _lock:
            _listening.setdefault(self._place, set()).add(me)
        try:
            while True:
                yield
                await me[1].wait()
                me[1].clear()
        finally:
            with _lock:
                _listening[self._place].discard(me)
                if not _listening[self._place]:
                    del _listening[self._place]


_lock = threading.Lock()
_listening: dict[object, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}
"""Those who listen in this process, by the store: its place, or its identity if it is in memory."""


def bell_of(store: Checkpointer) -> Bell:
    """Return the bell of a store. A store that wraps another has the bell of that one."""
    while isinstance(store, WrappedCheckpointer):
        store = store.store
    return store if isinstance(store, Bell) else _OwnBell(store.place or id(store))


def bell_name(*parts: str) -> str:
    """Return a name for the bell of a store that is told apart by these texts, such as its schema and its namespace. It
    has 37 letters and digits, so that every server takes it."""
    return "clew_" + blake3("\0".join(parts).encode()).hexdigest()[:32]


_ringing: set[asyncio.Task[None]] = set()


async def ring_soon(store: Checkpointer) -> None:
    """Ring the bell of a store in the background. Never raises, and does not wait for the store. What is sent to a
    server is on its way when this returns; so `store.close` waits for it."""
    task = asyncio.get_running_loop().create_task(_ring(bell_of(store)))
    _ringing.add(task)
    task.add_done_callback(_ringing.discard)
    await asyncio.sleep(0)


async def _ring(bell: Bell) -> None:
    try:
        await bell.ring()
    except Exception as error:  # noqa: BLE001 - nobody needs the bell: the next look finds the work
        log.debug("the bell was not rung: %r", error)


async def listen(store: Checkpointer, heard: Callable[[], None]) -> None:
    """Call `heard` when listening has begun, and then after each ring, until this is cancelled. If the connection breaks,
    it is made again after a pause. Returns if the bell of the store cannot be heard from here."""
    pause, bell = _FIRST, bell_of(store)
    while True:
        try:
            async with aclosing(cast("AsyncGenerator[None, None]", bell.hear())) as rings:
                async for _ in rings:
                    pause = _FIRST
                    heard()
                    await asyncio.sleep(_APART)
            return
        except Exception as error:  # noqa: BLE001 - whatever broke, it is tried again, and the caller looks meanwhile
            log.debug("the bell cannot be heard: %r", error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST)
