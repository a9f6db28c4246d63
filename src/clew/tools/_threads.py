"""Sync tools run in threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["run_in_thread"]

T = TypeVar("T")


async def run_in_thread(fn: Callable[[], T], name: str) -> T:
    """What `fn` returns or raises, run in a new thread with a copy of the context variables.

    If the waiting is cancelled the thread goes on, and its result is dropped. It is a daemon, and not one of a pool: a tool
    that never ends would otherwise keep the process from ending, and the pool from serving others.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(fn)
        except BaseException as error:  # noqa: BLE001  # handed to whoever waits
            settle(
                waiting.set_exception,
                RuntimeError(f"StopIteration: {error}") if isinstance(error, StopIteration) else error,
            )
        else:
            settle(waiting.set_result, value)

    def settle(how: Callable[[Any], None], value: Any) -> None:
        with suppress(RuntimeError):  # of a loop that is closed: nobody waits
            loop.call_soon_threadsafe(lambda: None if waiting.done() else how(value))

    threading.Thread(target=work, name=name, daemon=True).start()
    return await waiting
