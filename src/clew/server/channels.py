"""The threads that somebody follows now: who is told when one of them changes, and the words that a model writes there.
All of it is in the memory of this process, and only while somebody follows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from clew.checkpointers import Head
from clew.checkpointers.http.events import event
from clew.checkpointers.live import Delta, Dropped

__all__ = ["LOOK_AGAIN", "SHORTEST", "Channel", "ChannelKey", "Channels", "Listener", "delta_event"]

LOOK_AGAIN = 0.5
"""Seconds between two looks at a thread that is followed. Appends through this service are noticed at once; those of
other processes by the next look."""
SHORTEST = 0.05
"""The shortest time between two looks at a thread for one reader, in seconds. A run that appends often is not slowed
down by those who follow it."""
_MOST_WAITING = 2**17
"""The most bytes of deltas that wait for one reader. The oldest are dropped for more."""
_MOST_RECENT = 2**18
"""The most bytes of recent events that a channel keeps, so that many readers of one thread do not each decode it."""
_AT_ONCE = 2
"""How many threads are decoded for readers at once. Decoding may need much memory."""

ChannelKey = tuple[str, str]
"""A namespace (a part of the store) and the id of a thread in it."""


Encode = Callable[[Delta], bytes]


class Listener:
    """One reader of a thread's live events, and the deltas that wait to be sent to it. `encode` makes an event of a
    delta."""

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._is_due = False
        self._changed = asyncio.Event()

    def put(self, delta: bytes) -> None:
        """Add an encoded event with deltas. If too many wait, drop the oldest."""
        self._waiting.append(delta)
        self._size += len(delta)
        while self._size > _MOST_WAITING and len(self._waiting) > 1:
            self._size -= len(self._waiting.popleft())
            self._dropped += 1
        self._changed.set()

    def wake(self) -> None:
        """Tell the reader that the thread may have changed."""
        self._is_due = True
        self._changed.set()

    def take(self) -> bytes:
        """Return the events that wait, as one piece; in front of them, how many were dropped, if any."""
        dropped, self._dropped, self._size = self._dropped, 0, 0
        told = event("dropped", _json(Dropped(dropped))) if dropped else b""
        found = told + b"".join(self._waiting)
        self._waiting.clear()
        return found

    async def wait(self, seconds: float) -> bool:
        """Wait until there are deltas or the thread may have changed, for at most so many seconds. Returns whether to
        look at the thread: it may have changed, or the time is over."""
        is_over = False
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            is_over = True
        self._changed.clear()
        is_due, self._is_due = self._is_due or is_over, False
        return is_due


class Channel:
    """One thread that somebody follows, and what its readers share: the last look at its head, and its recent events."""

    def __init__(self) -> None:
        self.listeners: set[Listener] = set()
        self.looks = {is_opaque: _Look() for is_opaque in (False, True)}
        """The last look at the head: with the service's keys, and without them (`is_opaque`)."""
        self.decoding = asyncio.Lock()
        self._recent: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._size = 0

    def recent(self, log_id: str, frame: int) -> bytes | None:
        """Return the event of a frame of this log if it is one of the recent ones."""
        return self._recent.get((log_id, frame))

    def keep(self, log_id: str, frame: int, encoded: bytes) -> None:
        """Keep the event of a frame for other readers; drop the oldest if that takes too much memory."""
        if (log_id, frame) in self._recent:
            return
        self._recent[log_id, frame] = encoded
        self._size += len(encoded)
        while self._size > _MOST_RECENT:
            self._size -= len(self._recent.popitem(last=False)[1])

    def wake(self) -> None:
        """Make every reader look at the thread."""
        for look in self.looks.values():
            look.is_old = True
        for listener in self.listeners:
            listener.wake()


class _Look:
    """A look at the head of a thread that many readers share, so that they do not each ask the store."""

    def __init__(self) -> None:
        self.is_old = True
        self._head: Head | None = None
        self._at = 0.0
        self._lock = asyncio.Lock()

    async def head(self, read: Callable[[], Awaitable[Head | None]]) -> Head | None:
        """Return the head of the thread, which `read` reads if nobody has read it just now."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self.is_old or now - self._at >= LOOK_AGAIN / 2:
                self.is_old = False
                try:
                    self._head = await read()
                except BaseException:
                    self.is_old = True
                    raise
                self._at = now
            return self._head


class Channels:
    """The channels of a service, one for each thread that somebody follows now."""

    def __init__(self) -> None:
        self.decoding = asyncio.Semaphore(_AT_ONCE)
        self.is_closed = False
        """Whether the service stops, so that all streams of events must end."""
        self._open: dict[ChannelKey, Channel] = {}

    @contextmanager
    def listen(self, key: ChannelKey, encode: Encode) -> Iterator[tuple[Channel, Listener]]:
        """Follow a thread for the length of the block. Gives its channel, and what this reader is told. `encode` makes
        an event of a delta; readers with the same function share what it returns."""
        channel = self._open.setdefault(key, Channel())
        listener = Listener(encode)
        channel.listeners.add(listener)
        try:
            yield channel, listener
        finally:
            channel.listeners.discard(listener)
            if not channel.listeners:
                with suppress(KeyError):
                    del self._open[key]

    def wake(self, key: ChannelKey) -> None:
        """Make all who follow the thread look at it, because it was changed."""
        if (channel := self._open.get(key)) is not None:
            channel.wake()

    def publish(self, key: ChannelKey, deltas: Sequence[Delta]) -> int:
        """Pass pieces of a response on to all who follow the thread, and return how many they are."""
        channel = self._open.get(key)
        if channel is None:
            return 0
        if deltas:
            encoded = {
                encode: b"".join(map(encode, deltas)) for encode in {listener.encode for listener in channel.listeners}
            }
            for listener in channel.listeners:
                listener.put(encoded[listener.encode])
        return len(channel.listeners)

    def close(self) -> None:
        """Let all streams of events end."""
        self.is_closed = True
        for channel in self._open.values():
            channel.wake()


def delta_event(delta: Delta) -> bytes:
    """Return the event of a delta, for programs."""
    return event("delta", _json(delta))


def _json(value: msgspec.Struct) -> str:
    return msgspec.json.encode(value).decode()
