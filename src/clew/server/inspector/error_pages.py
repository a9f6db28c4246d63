"""Error pages: each says what happened and what to do about it."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException

from clew import advice
from clew.checkpointers.http.protocol import Failure
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
from clew.server.failures import STATUS, Refused, log_failure
from clew.server.inspector.plain_pages import error_page
from clew.server.inspector.templates import Markup
from clew.server.inspector.visits import Desk, Viewer, Visit, html, viewer_of
from clew.server.request import KEY, Call
from clew.threads import Thread

__all__ = ["DAMAGE", "HANDLERS", "damaged", "refusal_page"]

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


def refusal_page(failure: Failure) -> tuple[int, Markup]:
    """Return the status code and the error page for a request that the service's gate (`Gate`) has refused."""
    status = STATUS[failure.code].value
    return status, error_page(None, status, _TITLES.get(status, "Not now"), _sentence(failure.message))


async def damaged(request: Request[Any, Any, Any], error: ClewError) -> Response[bytes]:
    """Return the error page for a thread that cannot be read. Checks the thread as `clew verify` does, and lists what
    it found."""
    viewer = _viewer(request)
    title, text = "This thread is damaged", _sentence(str(error))
    if isinstance(error, WrongKey):
        title = "This thread is sealed"
    try:
        visit = Visit(request)
        async with visit.store() as store:
            verdict = await Thread.verify(store, visit.thread_id)
    except (ClewError, KeyError):
        return html(error_page(viewer, 500, title, text), 500)
    return html(error_page(viewer, 500, title, text, verdict), 500)


def _handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    viewer = _viewer(request)
    status, text = _status_and_text(error, viewer.store if viewer else "")
    return html(error_page(viewer, status, _TITLES.get(status, "Something is wrong here"), _sentence(text)), status)


def _status_and_text(error: Exception, store: str) -> tuple[int, str]:
    match error:
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
            return 503, "The store behind the server cannot be reached or did not answer. Try again in a moment."
        case Corrupt() | MissingBlob() | NewerFormat() | WrongKey():
            return 500, str(error)
        case HTTPException():
            return error.status_code, "There is no such page." if error.status_code == 404 else error.detail
        case _:
            log_failure(error)
            return 500, "The server failed; its log says how."


def _viewer(request: Request[Any, Any, Any]) -> Viewer | None:
    desk: Desk = request.app.state.desk
    call: Call | None = request.scope.get(KEY)  # type: ignore[assignment]
    return None if call is None else viewer_of(desk, call, "")


def _sentence(text: str) -> str:
    said = text[:1].upper() + text[1:]
    return said if said.endswith((".", "?", "!")) else f"{said}."


HANDLERS: dict[int | type[Exception], Any] = {
    HTTPException: _handle,
    Refused: _handle,
    ClewError: _handle,
    Exception: _handle,
}
