"""The bell of a Redis or Valkey store: SUBSCRIBE on a connection of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

__all__ = ["hear"]

_QUIET = 30.0
"""Seconds without a message after which the server is asked whether it is still there; and for which it may be silent
then."""


async def hear(client: Any, channel: str) -> AsyncIterator[None]:
    """Yield once when the server was told that this process listens to a channel, and then after each message in it.
    Raises an error of the driver, or `TimeoutError`, when the connection breaks. Closes `client`, a client of the
    driver."""
    async with client, client.pubsub() as heard:
        await heard.subscribe(channel)
        is_asked = False
        while True:
            message = await heard.get_message(timeout=_QUIET)
            if message is not None:
                is_asked = False
                if message["type"] != "pong":
                    yield
            elif is_asked:
                raise TimeoutError(f"the server has said nothing for {2 * _QUIET:g} s")
            else:
                is_asked = True
                await heard.ping()
