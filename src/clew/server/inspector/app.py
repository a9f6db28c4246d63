"""The inspector, the web pages of a service, as the service's gate (`Gate`) uses it: which paths belong to pages, the
router that makes the pages, and the pages for refused requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from clew.checkpointers.http.protocol import NAMESPACE_HEADER, Failure, encode_text
from clew.server.auth import Scope
from clew.server.failures import Refused
from clew.server.inspector import actions, pages
from clew.server.inspector.error_pages import error_response
from clew.server.inspector.login import browser_of, cookie_for, new_id
from clew.server.inspector.plain_pages import login_page
from clew.server.inspector.visits import Shared, Visit, html
from clew.server.request import Request
from clew.server.response import Response
from clew.server.router import Handler, Route, Router
from clew.server.settings import Settings
from clew.server.token_file import Tokens

__all__ = ["Inspector"]

_PATHS = frozenset({"/", "/overview", "/login", "/logout", "/threads/events", "/t", "/assets"})
_OPEN = frozenset({"/login"})


class Inspector:
    """The web pages of a service. None of their paths is a path of the API."""

    def __init__(
        self,
        settings: Settings,
        tokens: Tokens,
        begin: Callable[[Request, Scope | None], Awaitable[None]],
        stopping: Callable[[], bool],
    ) -> None:
        self._shared = Shared(settings, tokens, stopping)
        table = [*pages.ROUTES, *actions.ROUTES]
        self.router = Router(
            [Route(method, path, scope, self._for_request(path, page)) for method, path, scope, page in table],
            partial(error_response, self._shared),
            begin,
        )

    def _for_request(self, path: str, page: Callable[[Visit], Awaitable[Response]]) -> Handler:
        """Return the function that responds to requests for the page at `path`; `page` makes the page. If making the
        page means to read threads, the function first waits until it may, because only a few such pages are made at
        once. For a page of live updates it does not wait: the page itself waits before each update."""

        async def respond(request: Request) -> Response:
            return self._with_id(request, await page(Visit(self._shared, request)))

        if path.endswith("/events") or not path.startswith(("/t/", "/overview")):
            return respond

        async def in_turn(request: Request) -> Response:
            async with self._shared.turns.of(request.token):
                return await respond(request)

        return in_turn

    def _with_id(self, request: Request, response: Response) -> Response:
        """Add a cookie with a random id to the response, if the browser that asks for the page has no such id yet.
        Returns the response."""
        is_new = browser_of(request.headers) != request.browser
        if is_new and not any(name == b"set-cookie" for name, _ in response.headers):
            cookie = cookie_for(request.browser, secure=request.is_secure)
            response.headers.append((b"set-cookie", cookie.encode()))
        return response

    def owns(self, path: str) -> bool:
        """Return whether a path belongs to a page of the inspector, and not to the API."""
        return path in _PATHS or path.startswith(("/t/", "/assets/"))

    def is_open(self, path: str) -> bool:
        """Return whether a path of the inspector needs no token, because it reveals nothing about what is stored."""
        return path in _OPEN or path.startswith("/assets/")

    def add_session(self, request: Request) -> None:
        """Find the session of the browser that asks for a page, and give the request the session's token, and the
        namespace (the part of the store) that the user chose at the login. If the token was revoked or has expired, the
        session ends.

        This is done for pages only. The API takes no cookie, so that no other site can use the API through a user's
        browser.
        """
        sessions = self._shared.sessions
        known = browser_of(request.headers)
        request.browser = known or new_id()
        session = sessions.find(known) if known else None
        if session is None:
            return
        request.session_token = self._shared.tokens.current(session.token)
        if request.session_token is None:
            sessions.end(known)
        elif session.namespace:
            inner = {NAMESPACE_HEADER.encode(): encode_text(session.namespace).encode()}
            request.headers = {**inner, **request.headers}

    def refusal(self, request: Request, failure: Failure) -> Response:
        """Return the page for a request that the service's gate (`Gate`) has refused: the login form if the request has
        no known token, else an error page."""
        if failure.code == "unauthenticated":
            here = request.path + (f"?{request.query}" if request.query else "")
            proof = self._shared.sessions.proof(request.browser)
            page = login_page(proof, here if request.method == "GET" else "/", needs_token=True)
            return self._with_id(request, html(page, 401))
        response = error_response(self._shared, request, Refused(failure.code, failure.message))
        if failure.retry_after:
            response.headers.append((b"retry-after", b"%d" % failure.retry_after))
        return response
