"""Error pages: each says what happened and what to do about it."""

from __future__ import annotations

from clew import advice
from clew.errors import (
    ClewError,
    Conflict,
    Corrupt,
    InvalidInput,
    LeaseLost,
    MissingBlob,
    NewerFormat,
    ThreadBusy,
    ThreadNotFound,
    Unavailable,
    UsageError,
    WrongKey,
)
from clew.server.auth import NOBODY
from clew.server.failures import STATUS, Refused, WrongMethod, log_failure, unavailability
from clew.server.inspector.plain_pages import error_page
from clew.server.inspector.visits import Shared, Viewer, Visit, html, viewer_of
from clew.server.request import Request
from clew.server.response import Response
from clew.threads import Thread

__all__ = ["DAMAGE", "damaged", "error_response"]

_TITLES = {
    400: "That cannot be",
    403: "Not allowed",
    404: "Not found",
    405: "Not allowed",
    409: "It has changed",
    413: "Too much",
    429: "Too many requests",
    500: "Something is wrong here",
    503: "The store is away",
}
DAMAGE = (Corrupt, MissingBlob, NewerFormat, WrongKey)


async def damaged(visit: Visit, error: ClewError) -> Response:
    """Return the error page for a thread that cannot be read. `error` says why. The page also lists what is wrong with
    the thread, found by a check of everything that the store holds of it."""
    viewer = _viewer(visit.shared, visit.request)
    title, text = "This thread is damaged", _sentence(str(error))
    if isinstance(error, WrongKey):
        title = "This thread is sealed"
    try:
        async with visit.store() as store:
            verdict = await Thread.verify(store, visit.thread_id)
    except (ClewError, KeyError):
        return html(error_page(viewer, 500, title, text), 500)
    return html(error_page(viewer, 500, title, text, verdict), 500)


def error_response(shared: Shared, request: Request, error: Exception) -> Response:
    """Return the error page for an error that a route of the inspector raised for `request`. `shared` is what all pages
    of the service share, such as its settings and logins."""
    headers = {"allow": ", ".join(sorted([*error.methods, "OPTIONS"]))} if isinstance(error, WrongMethod) else {}
    if headers and request.method == "OPTIONS":
        return Response(status=204, headers=headers)
    viewer = _viewer(shared, request)
    status, text = _status_and_text(error, viewer.store if viewer else "")
    page = error_page(viewer, status, _TITLES.get(status, "Something is wrong here"), _sentence(text))
    return html(page, status, headers)


def _status_and_text(error: Exception, store: str) -> tuple[int, str]:
    match error:
        case WrongMethod():
            return 405, str(error)
        case Refused() if error.code == "no_such_path":
            return 404, "There is no such page."
        case Refused():
            return STATUS[error.code].value, str(error)
        case ThreadNotFound():
            return 404, "There is no such thread here. It may have been deleted, or be in another namespace."
        case ThreadBusy():
            return 409, advice.for_shell(str(error), error.thread_id, store=store)
        case Conflict() | LeaseLost():
            return 409, str(error)
        case InvalidInput() | UsageError():
            return 400, str(error)
        case Unavailable():
            log_failure(error)
            return 503, f"{_sentence(unavailability(error))} Try again in a moment."
        case Corrupt() | MissingBlob() | NewerFormat() | WrongKey():
            return 500, str(error)
        case _:
            log_failure(error)
            return 500, "The server failed; its log says how."


def _viewer(shared: Shared, request: Request) -> Viewer | None:
    return None if request.token is NOBODY else viewer_of(shared, request, "")


def _sentence(text: str) -> str:
    said = text[:1].upper() + text[1:]
    return said if said.endswith((".", "?", "!")) else f"{said}."
