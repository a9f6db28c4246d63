"""The events of a thread that the API sends to those who follow it: its new frames, its status, and the words that a
model writes there now."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec

from clew._runtime.aio import settle
from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.http.events import event
from clew.checkpointers.http.protocol import HEART_BEAT, log_number
from clew.errors import ClewError, Conflict, Unavailable, WrongKey
from clew.log import FIRST, Frame
from clew.server.channels import LOOK_AGAIN, SHORTEST, Channel, delta_event
from clew.server.failures import Refused, failure_of
from clew.server.request import Request
from clew.server.response import Stream
from clew.server.stores import Use
from clew.threads.heads import is_part
from clew.threads.leases import is_live, shown_status
from clew.threads.reader import decoded_frames
from clew.threads.views.entries import lines_of

__all__ = ["RETRY", "STILL_HERE", "ThreadEvents"]

RETRY = b"retry: 2000\n\n"
"""Says after how many milliseconds a browser connects again."""
STILL_HERE = b": still here\n\n"
_PAGE = 16
"""The most frames that are decoded before they are sent."""
_PAGE_BYTES = 2**20
_LARGE = 2**17
"""A frame that unpacks to more bytes than this is written as JSON on another OS thread, and its event counts as memory
in use while it is sent."""


class ThreadEvents:
    """The events of one thread for one reader, from a frame on."""

    def __init__(self, request: Request, after: int, log: int | None, *, with_entries: bool) -> None:
        """`after` is the number of the last frame that the reader has; -1 for none. `log` is the number of the log that
        it comes from, None if that is not known. Without `with_entries`, events only say that there are new frames."""
        self._request = request
        self._thread_id = request.thread_id
        self._next = after + 1
        self._log = log
        self._with_entries = with_entries
        self._is_opaque = not with_entries
        self._status: tuple[object, ...] = ()
        self._is_over = False
        """Whether the stream has come to its end."""

    async def check(self) -> None:
        """Read the head once. Raises `Refused` if there is no such thread. If the thread is sealed with a key that the
        service does not have, its events will say so."""
        with self._request.channels.listen(self._request.channel, delta_event) as (channel, _):
            try:
                head = await self._head(channel)
            except WrongKey:
                self._is_opaque = True
                head = await self._head(channel)
        if head is None:
            raise Refused("absent", "there is no such thread")

    async def stream(self) -> Stream:
        """Yield the events until the thread is gone, the store fails or the service stops. In the last two cases a
        browser connects again by itself, and goes on after the last frame that it got."""
        channels = self._request.channels
        yield RETRY
        with channels.listen(self._request.channel, delta_event) as (channel, listener):
            quiet = 0.0
            is_due = True
            while not channels.is_closed:
                is_silent = True
                if is_due:
                    async with aclosing(self._news(channel)) as news:
                        async for piece in news:
                            is_silent = False
                            yield piece
                    if self._is_over:
                        return
                if piece := listener.take():
                    is_silent = False
                    yield piece
                if not is_silent:
                    quiet = 0.0
                elif quiet >= HEART_BEAT:
                    quiet = 0.0
                    yield STILL_HERE
                if is_due:
                    await asyncio.sleep(SHORTEST)
                before = asyncio.get_running_loop().time()
                is_due = await listener.wait(LOOK_AGAIN)
                quiet += asyncio.get_running_loop().time() - before

    async def _news(self, channel: Channel) -> Stream:
        """Look at the thread, and yield what is new: its status, its frames, or that it is gone."""
        try:
            head = await self._head(channel)
            if head is None:
                yield self._gone("absent", "the thread was deleted")
                return
            log = log_number(head.log_id)
            if log != (self._log or log) or self._next > head.frames:
                yield self._gone("replaced", "the thread was deleted and made again, or its log was rewritten")
                return
            self._log = log
            if piece := self._status_event(head):
                yield piece
            async with aclosing(self._frames(channel, head)) as frames:
                async for piece in frames:
                    yield piece
        except Conflict:
            channel.wake()  # it was deleted or replaced while it was read: the next look says so
        except (Refused, Unavailable):  # no memory for a large event, or no store: the reader comes again
            self._is_over = True
        except ClewError as error:
            failure = failure_of(error)
            yield self._gone(failure.code, failure.message)

    def _gone(self, code: str, message: str) -> bytes:
        """Return the last event of the stream. It resets the id, so that a browser that connects again does not go on
        in the middle of another log."""
        self._is_over = True
        return event("gone", msgspec.json.encode({"code": code, "message": message}).decode(), "")

    def _status_event(self, head: Head) -> bytes:
        """Return an event with the status of the thread if it has changed; else nothing."""
        holder = str(head.lease.owner) if head.lease is not None and is_live(head.lease) else ""
        status = (shown_status(head), holder)
        if status == self._status:
            return b""
        self._status = status
        told = {
            "thread_id": head.thread_id,
            "log": self._log,
            "frames": head.frames,
            "status": status[0],
            "holder": holder,
        }
        return event("thread", msgspec.json.encode(told).decode())

    async def _frames(self, channel: Channel, head: Head) -> Stream:
        """Yield an event for each frame that the reader does not have; without entries, one for all of them."""
        if not self._with_entries and self._next < head.frames:
            self._next = head.frames
            yield _frame_event(head.frames - 1)
        while self._next < head.frames:
            for encoded in await self._page(channel, head):
                self._next += 1
                size = len(encoded) if len(encoded) > _LARGE else 0
                room = self._request.room
                if room is not None and size:
                    room.take(self._request.token, size)
                yield encoded
                if room is not None and size:
                    room.give_back(size)

    async def _page(self, channel: Channel, head: Head) -> list[bytes]:
        """Return the events of the next frames, at least one. Readers of the same thread share what one of them has
        decoded."""
        if self._is_opaque:
            return [_frame_event(self._next, sealed=True)]
        found: list[bytes] = []
        async with channel.decoding:
            while (known := channel.recent(head.log_id, self._next + len(found))) and len(found) < _PAGE:
                found.append(known)
            if found:
                return found
            async with self._request.channels.decoding, self._store() as store:
                return await self._decoded(channel, store, head)

    async def _decoded(self, channel: Channel, store: Checkpointer, head: Head) -> list[bytes]:
        start, found, size = self._next, list[bytes](), 0
        stop = min(start + _PAGE, head.frames)
        try:
            async with aclosing(
                decoded_frames(store, head, start=start, stop=stop, previous=None if start else FIRST)  # type: ignore[type-var]
            ) as frames:
                async for number, frame in frames:
                    encoded = await _encoded(number, frame)
                    channel.keep(head.log_id, number, encoded)
                    found.append(encoded)
                    size += len(encoded)
                    if size >= _PAGE_BYTES:
                        break
        except WrongKey:
            if not found:
                self._is_opaque = True
                found.append(_frame_event(start, sealed=True))
        return found

    async def _head(self, channel: Channel) -> Head | None:
        async def read() -> Head | None:
            async with self._store() as store:
                return await store.head(self._thread_id)

        head = await channel.looks[self._is_opaque].head(read)
        return None if head is None or is_part(head) else head

    def _store(self) -> Use:
        return self._request.store() if self._is_opaque else self._request.readable_store()


async def _encoded(number: int, frame: Frame) -> bytes:
    if frame.stored < _LARGE:
        return _entries_event(number, frame)
    return await settle(asyncio.to_thread(_entries_event, number, frame))


def _entries_event(number: int, frame: Frame) -> bytes:
    entries = [line.plain() for line in lines_of(number, frame)]
    data = msgspec.json.encode({"frame": number, "entries": entries}, enc_hook=str).decode()
    return event("", data, str(number))


def _frame_event(number: int, *, sealed: bool = False) -> bytes:
    """Return the event of a frame without its entries. `sealed` says that the service cannot read them."""
    told = {"frame": number, "sealed": True} if sealed else {"frame": number}
    return event("", msgspec.json.encode(told).decode(), str(number))
