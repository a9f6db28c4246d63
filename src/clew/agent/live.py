"""Passes the words that the model writes on to those who follow the thread live. Best effort: it never delays a run, and
its failures are only logged for debugging."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from clew._runtime.aio import cancel_and_wait
from clew.agent.events import Event, Retrying, TextDelta, ThinkingDelta, TurnStarted
from clew.agent.run import Emit
from clew.checkpointers.live import LONGEST_DELTA, MOST_DELTAS, Delta, LiveChannel, NoLiveEvents

__all__ = ["published"]

log = logging.getLogger("clew.agent")

_BETWEEN = 0.1
"""Seconds between two messages to the channel."""
_NOBODY = 3.0
"""Seconds for which nothing is sent after the channel said that nobody follows the thread."""
_FAILED = 30.0
"""Seconds for which nothing is sent after a message could not be sent."""
_MOST_WAITING = 2**16
"""The most characters that wait to be sent. If more come, all that wait are dropped, and those who follow see a gap."""
_PATIENCE = 5.0
"""Seconds after which a message that gets no answer is given up."""


@asynccontextmanager
async def published(channel: LiveChannel | None, thread_id: str, emit: Emit) -> AsyncIterator[Emit]:
    """Give a function to call with each event of a run instead of `emit`. It calls `emit`, and passes the text and the
    thinking of responses on through `channel`. With None for `channel`, it is `emit` itself."""
    if channel is None:
        yield emit
        return
    publisher = _Publisher(channel, thread_id)

    def both(event: Event) -> None:
        emit(event)
        publisher.hear(event)

    try:
        yield both
    finally:
        await publisher.close()


class _Publisher:
    """Collects words, and sends them in one background task: at most one message at a time, and one for each
    `_BETWEEN` seconds."""

    def __init__(self, channel: LiveChannel, thread_id: str) -> None:
        self._channel = channel
        self._thread_id = thread_id
        self._loop = asyncio.get_running_loop()
        self._turn = 0
        self._at = 0
        self._waiting: deque[Delta] = deque()
        self._size = 0
        self._quiet_until = 0.0
        self._filled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def hear(self, event: Event) -> None:
        """Take an event of the run. Does nothing but add its words to those that wait."""
        match event:
            case TextDelta():
                self._add(event.text, "text")
            case ThinkingDelta():
                self._add(event.text, "thinking")
            case TurnStarted():
                self._turn, self._at = event.turn, 0
            case Retrying():
                self._at = 0

    async def close(self) -> None:
        """Stop sending. What still waits is dropped: the response is on record, or never will be."""
        if self._task is not None:
            await cancel_and_wait((self._task,))

    def _add(self, text: str, kind: Literal["text", "thinking"]) -> None:
        at, self._at = self._at, self._at + len(text)
        if not text or self._loop.time() < self._quiet_until:
            return
        if self._size + len(text) > _MOST_WAITING:
            self._drop()
        if len(text) > _MOST_WAITING:
            return
        self._waiting.append(Delta(self._turn, at, text, kind))
        self._size += len(text)
        self._filled.set()
        if self._task is None:
            self._task = self._loop.create_task(self._send())

    def _drop(self) -> None:
        self._waiting.clear()
        self._size = 0

    async def _send(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            deltas = _joined(self._waiting)[-MOST_DELTAS:]
            self._drop()
            if not deltas:
                continue
            try:
                async with asyncio.timeout(_PATIENCE):
                    listeners = await self._channel.publish(self._thread_id, deltas)
            except NoLiveEvents:
                self._quiet_until = float("inf")
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the run
                log.debug("thread %r: live words could not be sent: %s", self._thread_id, error)
                self._rest(_FAILED)
            else:
                if not listeners:
                    self._rest(_NOBODY)
            await asyncio.sleep(_BETWEEN)

    def _rest(self, seconds: float) -> None:
        self._quiet_until = self._loop.time() + seconds
        self._drop()


def _joined(waiting: deque[Delta]) -> list[Delta]:
    """Return these deltas with those that continue each other joined, and then cut to the longest that is allowed. Half
    a surrogate pair, which some vendors send, becomes a question mark."""
    found: list[Delta] = []
    for delta in _runs(waiting):
        text = delta.text.encode("utf-8", "replace").decode()
        for start in range(0, len(text), LONGEST_DELTA):
            part = text[start : start + LONGEST_DELTA]
            found.append(Delta(delta.turn, delta.at + start, part, delta.kind))
    return found


def _runs(waiting: deque[Delta]) -> list[Delta]:
    runs: list[tuple[Delta, list[str]]] = []
    end = -1
    for delta in waiting:
        if runs and (delta.turn, delta.kind, delta.at) == (runs[-1][0].turn, runs[-1][0].kind, end):
            runs[-1][1].append(delta.text)
        else:
            runs.append((delta, [delta.text]))
        end = delta.at + len(delta.text)
    return [Delta(first.turn, first.at, "".join(texts), first.kind) for first, texts in runs]
