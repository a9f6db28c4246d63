"""Looks, while a program works, for what it has begun and prints only when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from clew._runtime.aio import settle
from clew.providers.happenings import Watch

__all__ = ["watched"]

_EVERY = 0.05
"""Seconds between two looks: for so long a tool may run before it is on record. 20 looks a second take 0.8 % of a core on a
busy machine, nearly all of it for the change of threads: a look itself takes 4 µs if nothing has changed, else 11 µs."""


@asynccontextmanager
async def watched(
    watch: Watch | None, take: Callable[[bytes], None], stop: asyncio.Future[None]
) -> AsyncIterator[None]:
    """Give `take` the lines of a watch for as long as this is open, and a last time at its end, be that an error. An error
    of `take` meanwhile is set on `stop`."""
    if watch is None:
        yield
        return
    over = asyncio.Event()
    looking = asyncio.ensure_future(_look(watch, take, over, stop))
    try:
        yield
    finally:
        over.set()
        await settle(looking)


async def _look(watch: Watch, take: Callable[[bytes], None], over: asyncio.Event, stop: asyncio.Future[None]) -> None:
    try:
        while True:
            is_last = over.is_set()
            for line in await asyncio.to_thread(watch.look):
                take(line)
            if is_last:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY):
                    await over.wait()
    except Exception as error:  # noqa: BLE001 - raised by whoever waits for the program
        if not (stop.done() or over.is_set()):
            stop.set_exception(error)
    finally:
        await asyncio.to_thread(watch.close)
