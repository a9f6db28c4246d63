"""The inspector as one ASGI application. The gate of the service calls it for the paths of web pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from litestar import Litestar
from litestar.datastructures import State

from clew.checkpointers.http.protocol import Failure
from clew.server.failures import Answer
from clew.server.inspector import actions, pages
from clew.server.inspector.error_pages import HANDLERS, refusal_page
from clew.server.inspector.login import with_session
from clew.server.inspector.plain_pages import login_page
from clew.server.inspector.visits import HEADERS, Desk
from clew.server.settings import Settings

__all__ = ["Inspector"]

_PATHS = frozenset({"/", "/overview", "/login", "/logout", "/threads/events"})
_OPEN = frozenset({"/login"})


class Inspector:
    """The web pages of a service. None of their paths is a path of the API."""

    def __init__(self, settings: Settings, stopping: Callable[[], bool]) -> None:
        self._desk = Desk(settings, stopping)
        self.app: Any = Litestar(
            [*pages.ROUTES, *actions.ROUTES],
            exception_handlers=HANDLERS,
            openapi_config=None,
            logging_config=None,
            request_max_body_size=None,
            state=State({"desk": self._desk}),
        )

    def owns(self, path: str) -> bool:
        """Return whether a path is one of the inspector's, not of the API."""
        return path in _PATHS or path.startswith(("/t/", "/assets/"))

    def is_open(self, path: str) -> bool:
        """Return whether a path of the inspector needs no token, because it reveals nothing about what is stored."""
        return path in _OPEN or path.startswith("/assets/")

    def with_session(self, headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Return the headers of a request for a page, with the token from its cookie added as `Authorization`.

        This is done for pages only. The API takes no cookie, so that no other site can use the API through a user's
        browser.
        """
        return with_session(headers)

    def refusal(self, failure: Failure, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Answer:
        """Return the page for a request that the service's gate (`Gate`) has refused: the login form if the request has
        no known token, else an error page."""
        if failure.code == "unauthenticated":
            query = scope.get("query_string", b"").decode("latin-1")
            here = scope["path"] + (f"?{query}" if query else "")
            status = 401
            content = login_page(
                self._desk.forms.proof(headers), here if scope["method"] == "GET" else "/", needs_token=True
            )
        else:
            status, content = refusal_page(failure)
        body = content.encode("utf-8", "replace")
        named = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        named += [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        if failure.retry_after:
            named.append((b"retry-after", str(failure.retry_after).encode()))
        return status, named, body
