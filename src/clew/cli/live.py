"""Waits until a thread that the user follows has changed: told by the store's service where there is one, else by
looking again after a pause."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from clew.cli.deferred import asyncio, live
from clew.errors import ClewError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from clew.checkpointers import Delta, Head
    from clew.checkpointers.live import LiveChannel, LiveEvent

__all__ = ["Watch"]

_SHORTEST, _LONGEST = 0.1, 2.0
"""The shortest and the longest pause between two looks at a thread, in seconds, if nobody tells when it changes. After
a change the pause is the shortest; it grows while nothing changes. The same pauses lie between two attempts to follow
the thread after the connection broke."""
_TOLD = 15.0
"""The pause between two looks, in seconds, while the service tells when the thread changes."""
_MOST_WAITING = 256
"""The most events that wait until they are shown. The service drops words for a reader who takes them too slowly."""


class Watch:
    """Follows one thread, which must be left with `close`. If the store passes live events on, the connection for them
    is made again whenever it breaks, and meanwhile the thread is looked at after pauses."""

    def __init__(self, channel: LiveChannel | None, head: Head) -> None:
        self._head = head
        self._pause = _SHORTEST
        self._is_told = False
        self._events: asyncio.Queue[LiveEvent] = asyncio.Queue(_MOST_WAITING)
        self._task = None if channel is None else asyncio.create_task(self._listen(channel))

    async def next(self, head: Head, *, moved: bool) -> Delta | None:
        """Wait until the thread may have changed, and return None; or return a piece of a response that is being
        written. `head` is the thread as it was shown, and `moved` says whether something new was shown."""
        self._head = head
        self._pause = _SHORTEST if moved else min(_LONGEST, self._pause * 1.5)
        try:
            async with asyncio.timeout(_TOLD if self._is_told else self._pause):
                event = await self._events.get()
        except TimeoutError:
            return None
        return event if isinstance(event, live.Delta) else None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _listen(self, channel: LiveChannel) -> None:
        """Put the live events of the thread into the queue, in order. Ends if the service does not know live events."""
        pause = _SHORTEST
        while True:
            try:
                events = channel.follow(self._head.thread_id, after=self._head.frames - 1, log_id=self._head.log_id)
                async with aclosing(
                    cast("AsyncGenerator[LiveEvent, None]", events)
                ):  # closed now, not once it is collected
                    async for event in events:
                        self._is_told = True
                        pause = _SHORTEST
                        await self._events.put(event)
            except live.NoLiveEvents:
                return
            except ClewError:
                pause = min(_LONGEST, pause * 1.5)
            finally:
                self._is_told = False
            await self._events.put(live.Changed())  # look now: what happened meanwhile nobody has told
            await asyncio.sleep(pause)
