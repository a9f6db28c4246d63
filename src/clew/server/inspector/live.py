"""Updates of pages that are open in a browser: server-sent events, each with the pieces of the page that changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager

import msgspec

from clew._runtime.text import visible
from clew.agent.way_forward import Way, way_of
from clew.checkpointers import Checkpointer, Head
from clew.checkpointers.http.events import event
from clew.checkpointers.http.protocol import HEART_BEAT
from clew.checkpointers.live import Delta
from clew.errors import ClewError, Unavailable
from clew.server.channels import LOOK_AGAIN, SHORTEST, Channels
from clew.server.events import RETRY, STILL_HERE
from clew.server.inspector.thread_page import WINDOW, facts_html, questions_html, resume_html, setup_html
from clew.server.inspector.threads_page import list_threads, rows
from clew.server.inspector.timelines import Readers
from clew.server.inspector.turns import cell_html, mark_html, mark_id, pending_html, tick_html, turn_html, writing_html
from clew.server.inspector.visits import Viewer
from clew.server.stores import Use
from clew.threads.leases import is_crashed
from clew.threads.views.timeline import Mark, TimelineReader, TimelineTurn

__all__ = ["Patch", "thread_events", "threads_events"]

_LIST_PAUSE = 2.0
"""Seconds between two reads of the store that look for changes of the list of threads."""


class Patch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A changed piece of a page, as HTML. It replaces the element with the id `id`. If the page has no such element, it
    is appended to the element with the id `into`."""

    id: str
    html: str
    into: str = ""


async def thread_events(
    open_store: Callable[[], Use],
    readers: Readers,
    namespace: str,
    thread_id: str,
    viewer: Viewer,
    known: int,
    stopping: Callable[[], bool],
    turn: Callable[[], AbstractAsyncContextManager[None]],
    channels: Channels,
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events with the pieces of a thread's page that change. The page already shows the thread's
    first `known` frames; `viewer` is the person who looks at it. `open_store` opens the store for one read. `readers`
    caches what was read from logs, by `namespace` (the part of the store that has the thread) and the id of the thread.
    `turn` returns a context manager in which an update is made: it waits while too many pages are being made at once.
    `channels` are those of the service: they tell when the thread was changed, and pass on the words that a model
    writes there now.

    The stream ends when `stopping` returns True, when the thread is gone, or when the store is unreachable. In the last
    case the browser connects again by itself.
    """
    follow = _Follow(readers, namespace, thread_id, viewer, known)
    due = RETRY  # sent after the first look: a browser that has it is told of every later change
    quiet, is_due = 0.0, True
    with channels.listen((namespace, thread_id), _shown_delta) as (_, listener):
        while not stopping():
            if is_due:
                try:
                    async with turn(), open_store() as store:
                        patches = await follow.news(store)
                except Unavailable:
                    return  # the page asks again by itself
                except ClewError as error:
                    yield due + event("gone", str(error))
                    return
                if patches:
                    due += event("patch", msgspec.json.encode(patches).decode())
            due += listener.take()
            if not due and quiet >= HEART_BEAT:
                due = STILL_HERE
            if due:
                yield due
                due, quiet = b"", 0.0
            if is_due:
                await asyncio.sleep(SHORTEST)
            before = asyncio.get_running_loop().time()
            is_due = await listener.wait(LOOK_AGAIN)
            quiet += asyncio.get_running_loop().time() - before


class _Follow:
    """Remembers which pieces of a thread's page (turns, events, and the box with its status, cost and so on) were sent
    to the browser, to find those that have changed since."""

    def __init__(self, readers: Readers, namespace: str, thread_id: str, viewer: Viewer, known: int) -> None:
        self._readers = readers
        self._namespace = namespace
        self._thread_id = thread_id
        self._viewer = viewer
        self._known = known
        self._turns: dict[int, TimelineTurn] = {}
        self._marks: set[str] = set()
        self._seen: tuple[object, ...] | None = None
        self._parts: dict[str, str] = {}

    async def news(self, store: Checkpointer) -> list[Patch]:
        """Return the pieces of the page that changed since the last call. At the first call, return an empty list if
        the page already shows all frames, and otherwise all pieces, with at most the newest `WINDOW` turns."""
        reading = await self._readers.read(store, self._namespace, self._thread_id)
        reader, head, _ = reading
        abandoned = is_crashed(head)
        seen = (head.log_id, reader.frames, abandoned, head.lease is None)
        if seen == self._seen:
            return []
        is_first, self._seen = self._seen is None, seen
        is_known = is_first and reader.frames == self._known
        way = await way_of(store, head, reader.checkpoint)
        found = await reading.show(lambda reader: self._changes(reader, head, way))
        return [] if is_known else found

    def _changes(self, reader: TimelineReader, head: Head, way: Way) -> list[Patch]:
        """Return the pieces of the thread's page in the browser that changed since the last call. `reader` has read the
        thread's log, and `head` is the thread's head. `way` says what is needed to go on with the thread, such as an
        answer."""
        abandoned = is_crashed(head)
        start = max(0, min(self._turns, default=reader.total - WINDOW))
        timeline = reader.timeline(start, abandoned=abandoned)
        found = [*self._new_turns(timeline.turns), *self._new_marks(timeline.marks)]
        whole = {
            "facts": facts_html(head, timeline),
            "pending": pending_html(timeline, abandoned=abandoned),
            "writing": writing_html(len(reader.turns)),
            "resume": resume_html(self._viewer, way),
            "setup": setup_html(timeline),
            "questions": questions_html(self._viewer, head, timeline),
        }
        found += [Patch(name, str(html)) for name, html in whole.items() if self._parts.get(name) != html]
        self._parts = dict(whole)
        return found

    def _new_turns(self, turns: tuple[TimelineTurn, ...]) -> list[Patch]:
        changed = [turn for turn in turns if self._turns.get(turn.position) != turn]
        self._turns = {turn.position: turn for turn in turns[-WINDOW:]}
        found = []
        for turn in changed:
            row = turn_html(turn, self._thread_id, can_write=self._viewer.can_write)
            found += [
                Patch(f"p{turn.position}", str(row), "timeline"),
                Patch(f"c{turn.position}", str(cell_html(turn, self._thread_id)), "strip"),
            ]
        return found

    def _new_marks(self, marks: tuple[Mark, ...]) -> list[Patch]:
        found = []
        for mark in marks:
            name = mark_id(mark)
            if name in self._marks:
                continue
            self._marks.add(name)
            found.append(Patch(name, str(mark_html(mark)), "timeline"))
            if (made := tick_html(mark)) is not None:
                found.append(Patch(f"k{name}", str(made), "strip"))
        return found


async def threads_events(
    open_store: Callable[[], Use], asked: Mapping[str, str], stopping: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events with the rows of the page of all threads, whenever these rows have changed. `asked` has
    the page's filters, by name. `open_store` opens the store for one read.

    The stream ends when `stopping` returns True, when the threads cannot be read, or when the store is unreachable. In
    the last case the browser connects again by itself.
    """
    yield b"retry: 3000\n\n"
    before: str | None = None
    quiet = 0.0
    while not stopping():
        try:
            async with open_store() as store:
                now = rows(await list_threads(store, asked))
        except Unavailable:
            return  # the page asks again by itself
        except ClewError as error:
            yield event("gone", str(error))
            return
        if now != before:
            yield event("rows", now)
            before, quiet = now, 0.0
        elif quiet >= HEART_BEAT:
            yield STILL_HERE
            quiet = 0.0
        for _ in range(round(_LIST_PAUSE / LOOK_AGAIN)):
            if stopping():
                return
            await asyncio.sleep(LOOK_AGAIN)
            quiet += LOOK_AGAIN


def _shown_delta(delta: Delta) -> bytes:
    """Return the event of a delta for a page, with its control characters made visible. `end` is where it ends in the
    response, because a text that is made visible has another length."""
    shown = {"turn": delta.turn, "at": delta.at, "end": delta.at + len(delta.text), "kind": delta.kind}
    return event("delta", msgspec.json.encode({**shown, "text": visible(delta.text)}).decode())
