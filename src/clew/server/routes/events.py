"""The routes of live events: to follow a thread, and to pass on the words that a model writes there now."""

from __future__ import annotations

from clew.checkpointers.http.protocol import EVENTS, Deltas, Listeners
from clew.errors import InvalidInput
from clew.server.events import ThreadEvents
from clew.server.request import Request
from clew.server.response import Response
from clew.server.router import Route
from clew.server.wire import decoded, encoded, numbers

__all__ = ["DELTAS", "NO_BUFFERS", "ROUTES"]

DELTAS = "/deltas"
"""How the path for deltas ends."""
NO_BUFFERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Headers that make proxies pass each event on at once, and keep no copy."""
_LARGEST = 2**19
"""The largest request body, in bytes, that has deltas."""
_LAST_EVENT = b"last-event-id"


async def events(request: Request) -> Response:
    """Follow a thread: return its frames after the number `after`, and then what happens, as server-sent events that
    end only with the thread, the service or the client. The header `Last-Event-ID`, which browsers send when they
    connect again, counts more than `after`."""
    given = numbers(request, "after", "entries", "log")
    if given.get("entries", 1) > 1:
        raise InvalidInput("entries is 1, for events with the entries of frames, or 0, for events without them")
    followed = ThreadEvents(
        request, _last_known(request, given), given.get("log"), with_entries=bool(given.get("entries", 1))
    )
    await followed.check()
    return Response(followed.stream(), EVENTS, headers=NO_BUFFERS)


def _last_known(request: Request, given: dict[str, int]) -> int:
    last = request.headers.get(_LAST_EVENT, b"")
    if not last:
        return given.get("after", -1)
    if not last.isdigit() or len(last) > 15:
        raise InvalidInput("the header Last-Event-ID is the number of a frame, as the events of this path have it")
    return int(last)


async def deltas(request: Request) -> Response:
    """Pass pieces of a response that a model is writing on to those who follow the thread now. Nothing is stored. The
    answer says how many follow."""
    key = request.channel
    body = await decoded(request, Deltas, _LARGEST)
    return encoded(request, Listeners(request.channels.publish(key, body.deltas)))


ROUTES = [
    Route("GET", "/v1/threads/{thread}/events", "read", events),
    Route("POST", f"/v1/threads/{{thread}}{DELTAS}", "append", deltas),
]
