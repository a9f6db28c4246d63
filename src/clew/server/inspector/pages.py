"""The routes that only show something: pages, their live updates, and downloads."""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from typing import IO
from urllib.parse import quote

from clew._runtime.aio import settle
from clew.agent.way_forward import way_of
from clew.checkpointers import Checkpointer, Head, HeadQuery
from clew.checkpointers.http.protocol import EVENTS, OCTETS
from clew.errors import InvalidInput, ThreadNotFound
from clew.server.auth import EVERY_NAMESPACE
from clew.server.failures import Refused
from clew.server.inspector.assets import asset
from clew.server.inspector.entries_page import entries_page, read_stretch
from clew.server.inspector.error_pages import DAMAGE, damaged
from clew.server.inspector.files_page import files_page
from clew.server.inspector.live import thread_events, threads_events
from clew.server.inspector.overview_page import look_over, overview_page
from clew.server.inspector.thread_page import WINDOW, seen_at, thread_page, window_html
from clew.server.inspector.threads_page import list_threads, threads_page
from clew.server.inspector.visits import HEADERS, PageRoute, Visit, html
from clew.server.response import Response, Stream
from clew.server.routes.events import NO_BUFFERS
from clew.threads import Thread, to_markdown
from clew.threads.heads import is_part
from clew.threads.inbox import new_posts
from clew.threads.leases import is_crashed
from clew.threads.views.timeline import TimelineReader
from clew.threads.views.totals import stored_bytes

__all__ = ["ROUTES"]

_CHUNK = 2**16
_MOST_FORKS = 100
_HEADERS = {**HEADERS, **NO_BUFFERS}
"""The headers of a stream of events for a page."""


async def threads(visit: Visit) -> Response:
    async with visit.store() as store:
        listing = await list_threads(store, visit.query)
    return html(threads_page(visit.viewer, listing))


async def live_threads(visit: Visit) -> Response:
    events = threads_events(visit.store, visit.query, visit.is_over)
    return Response(events, EVENTS, headers=_HEADERS)


async def overview(visit: Visit) -> Response:
    async with visit.store() as store:
        of_all = visit.request.token.namespace == EVERY_NAMESPACE
        storage = await asyncio.to_thread(stored_bytes, store) if of_all else None
        found = await look_over(store, storage)
    return await settle(asyncio.to_thread(lambda: html(overview_page(visit.viewer, found))))


async def thread(visit: Visit) -> Response:
    thread_id = visit.thread_id
    try:
        async with visit.store() as store:
            reader, head, _ = await visit.shared.readers.read(store, visit.request.namespace, thread_id)
            forks = await _forks(store, thread_id)
            posts = await new_posts(store, head, reader.checkpoint.inbox_read)
            way = await way_of(store, head, reader.checkpoint)
            position = _position(visit, reader)
            readers, seen = visit.shared.readers, seen_at(reader.total, position)
            reading = await readers.read_at(store, visit.request.namespace, thread_id, seen.start, seen.stop)
    except DAMAGE as error:
        return await damaged(visit, error)
    return await reading.show(
        lambda reader: html(thread_page(visit.viewer, reader, reading.head, forks, posts, way, position))
    )


async def _forks(store: Checkpointer, thread_id: str) -> list[Head]:
    return [head async for head in Thread.list(store, HeadQuery(parent=thread_id, limit=_MOST_FORKS))]


def _position(visit: Visit, reader: TimelineReader) -> int | None:
    """Return the position of the turn that the page's address names; None if it names none. A position counts all turns
    of a thread from 0, including those that a rewind took back.

    The address has the position itself as the parameter `at`, or the number of a turn as the parameter `turn`. Numbers
    count only turns that no rewind took back. Raises `Refused` if there is no turn with that number.
    """
    at, turn = visit.number("at"), visit.number("turn")
    if at is not None:
        return min(at, max(0, reader.total - 1))
    if not turn:
        return None if turn is None or not reader.total else 0
    position = reader.turns.position_of(turn)
    if position is None:
        raise Refused("absent", f"this thread has turns 1 to {len(reader.turns)}; there is no turn {turn}")
    return position


async def turns(visit: Visit) -> Response:
    """Return the turns from the position `start` to before `stop`, both parameters of the request, as HTML without the
    page around them. Positions count all turns from 0, also those that a rewind took back. The page's script inserts
    the turns when the user asks for more. Raises `InvalidInput` if these are more than `WINDOW` turns, or none."""
    start, stop = visit.number("start") or 0, visit.number("stop") or 0
    if not start < stop <= start + WINDOW:
        raise InvalidInput(f"turns are sent {WINDOW} at a time at most, from start up to stop")
    thread_id = visit.thread_id
    async with visit.store() as store:
        reading = await visit.shared.readers.read_at(store, visit.request.namespace, thread_id, start, stop)

    def made(reader: TimelineReader) -> Response:
        timeline = reader.timeline(start, stop, abandoned=is_crashed(reading.head))
        return html(window_html(timeline, thread_id, can_write=visit.viewer.can_write))

    return await reading.show(made)


async def live_thread(visit: Visit) -> Response:
    thread_id = visit.thread_id
    async with visit.store() as store:
        await _head(store, thread_id)
    events = thread_events(
        visit.store,
        visit.shared.readers,
        visit.request.namespace,
        thread_id,
        visit.viewer,
        visit.number("frames") or 0,
        visit.is_over,
        partial(visit.shared.turns.of, visit.request.token),
        visit.request.channels,
    )
    return Response(events, EVENTS, headers=_HEADERS)


async def _head(store: Checkpointer, thread_id: str) -> Head:
    head = await store.head(thread_id)
    if head is None or is_part(head):
        raise ThreadNotFound(thread_id)
    return head


async def files(visit: Visit) -> Response:
    thread_id = visit.thread_id
    against = -1 if visit.query.get("against") == "" else visit.number("against")
    path = visit.query.get("path", "")
    async with visit.store() as store:
        state = await Thread.load(store, thread_id)
        made = await files_page(
            visit.viewer, store, thread_id, state, turn=visit.number("turn"), against=against, path=path
        )
    return html(made)


async def entries(visit: Visit) -> Response:
    start = visit.number("start") or 0
    async with visit.store() as store:
        head = await _head(store, visit.thread_id)
        stretch = await read_stretch(store, head, start)
    return await settle(asyncio.to_thread(lambda: html(entries_page(visit.viewer, head, start, stretch))))


async def export_markdown(visit: Visit) -> Response:
    thread_id = visit.thread_id
    async with visit.store() as store:
        state = await Thread.load(store, thread_id)
    markdown = await settle(asyncio.to_thread(to_markdown, state, thread_id=thread_id))
    data = markdown.encode("utf-8", "replace")
    return Response(data, "text/markdown", headers=_download(thread_id, "md"))


async def export_archive(visit: Visit) -> Response:
    """Send a thread as a `.clew` file, which `clew import` reads.

    It is written to a temporary file first, so that an error gives an error page and not half a download.
    """
    thread_id = visit.thread_id
    file = await asyncio.to_thread(tempfile.TemporaryFile)
    try:
        async with visit.store() as store:
            await Thread.export(store, thread_id, file)
        await asyncio.to_thread(file.seek, 0)
    except BaseException:
        file.close()
        raise
    return Response(_sent(file), OCTETS, headers=_download(thread_id, "clew"))


async def _sent(file: IO[bytes]) -> Stream:
    try:
        while data := await asyncio.to_thread(file.read, _CHUNK):
            yield data
    finally:
        file.close()


def _download(thread_id: str, ending: str) -> dict[str, str]:
    name = quote(f"{thread_id[:80]}.{ending}".replace("/", "_"), safe="")
    return {**HEADERS, "content-disposition": f"attachment; filename*=UTF-8''{name}"}


async def assets(visit: Visit) -> Response:
    found = asset(visit.request.path_params["name"])
    if found is None:
        raise Refused("absent", "there is no such file")
    data, kind = found
    kept = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
    return Response(data, kind, headers=kept)


ROUTES: list[PageRoute] = [
    ("GET", "/", "read", threads),
    ("GET", "/threads/events", "read", live_threads),
    ("GET", "/overview", "read", overview),
    ("GET", "/t/{thread}", "read", thread),
    ("GET", "/t/{thread}/turns", "read", turns),
    ("GET", "/t/{thread}/events", "read", live_thread),
    ("GET", "/t/{thread}/files", "read", files),
    ("GET", "/t/{thread}/entries", "read", entries),
    ("GET", "/t/{thread}/export.md", "read", export_markdown),
    ("GET", "/t/{thread}/export.clew", "read", export_archive),
    ("GET", "/assets/{name}", None, assets),
]
