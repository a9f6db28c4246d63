"""Defines `Visit`, a request for a page, from which the page's route learns who looks at which store, and what a form
sent. Also makes the response (`html`), with the headers that all pages have."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import parse_qsl

from clew._runtime.aio import Locks
from clew.errors import InvalidInput
from clew.server.auth import EVERY_NAMESPACE, NOBODY, Scope, Token
from clew.server.failures import Refused
from clew.server.inspector.login import Sessions
from clew.server.inspector.templates import Markup
from clew.server.inspector.timelines import Readers
from clew.server.request import Request
from clew.server.response import Response
from clew.server.settings import Settings
from clew.server.stores import Use
from clew.server.token_file import Tokens
from clew.server.wire import whole

__all__ = [
    "HEADERS",
    "PageRoute",
    "Shared",
    "Turns",
    "Viewer",
    "Visit",
    "html",
    "turn_of",
    "viewer_of",
]

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of every page, besides those of every response. They make browsers load nothing from other servers, run
only the inspector's own script, refuse to show a page in a frame, and keep no copy."""

_AT_ONCE = 2
_LARGEST_FORM = 2**20
_LARGEST_LOGIN = 2**14
"""The most bytes of a form that is sent without a token: the login form."""
_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


class Viewer(NamedTuple):
    """What the templates need to know about the person who looks at a page, such as whether this person may write, and
    the namespace (the part of the store) that the page shows."""

    can_write: bool = False
    has_tokens: bool = False
    label: str = ""
    namespace: str = ""
    csrf: str = ""
    store: str = ""
    """The URL to name with --store in commands that the page shows."""
    is_nested: bool = False
    """Whether the page shows a namespace within the token's namespace, instead of the token's namespace itself."""


class Turns:
    """Limits how many pages that read threads are made at once: one for each token, and `_AT_ONCE` for all tokens
    together.

    To make such a page may need much memory. Clients that ask for many at once, with one token or with several, must
    not take the memory that others need.
    """

    def __init__(self) -> None:
        self._of_tokens = Locks()
        self._of_all = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def of(self, token: Token) -> AsyncIterator[None]:
        """Wait until no other page is being made for this access token, and few enough for all tokens together. The
        page counts as being made until the `async with` block ends."""
        async with self._of_tokens[token.sha256], self._of_all:
            yield


class Shared:
    """What all pages of a service share: the settings, the tokens, the logins, the limit on how many pages are made at
    once, and a cache of timelines."""

    def __init__(self, settings: Settings, tokens: Tokens, stopping: Callable[[], bool]) -> None:
        self.settings = settings
        self.tokens = tokens
        self.stopping = stopping
        self.turns = Turns()
        self.readers = Readers()
        self.sessions = Sessions()


class Visit:
    """One request for a page, together with what all pages of the service share, such as its settings and logins."""

    def __init__(self, shared: Shared, request: Request) -> None:
        self.shared = shared
        self.request = request

    @property
    def viewer(self) -> Viewer:
        return viewer_of(self.shared, self.request, self.request.inner_namespace)

    @property
    def thread_id(self) -> str:
        return self.request.thread_id

    @property
    def query(self) -> dict[str, str]:
        """The parameters in the query of the page's address, by name. If a name occurs more than once, its first value
        counts."""
        return dict(reversed(self.request.query_params))

    def store(self) -> Use:
        return self.request.readable_store()

    def is_over(self) -> bool:
        """Return whether a stream of events to this page must end: the service stops, or the token was revoked."""
        return self.shared.stopping() or self.shared.tokens.current(self.request.token) is None

    def number(self, name: str) -> int | None:
        """Return the query parameter with this name as a whole number; None if it is empty or not given. Raises
        `InvalidInput` if it is not a whole number from 0 on."""
        text = self.query.get(name, "")
        return _number(name, text) if text else None

    async def form(self) -> dict[str, str]:
        """Read the fields of the form that was sent. If a name occurs more than once, its last value counts.

        Raises `InvalidInput` for a body that is not a form, and `Refused` for a form that another site sent, that was
        made for another browser, or before the service was started again.
        """
        headers = self.request.headers
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/x-www-form-urlencoded":
            raise InvalidInput(
                "the body must be a form (application/x-www-form-urlencoded). Open the page in a browser and use its form."
            )
        body = bytes(await whole(self.request, _LARGEST_LOGIN if self.request.token is NOBODY else _LARGEST_FORM))
        try:
            fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=500))
        except ValueError as error:
            raise InvalidInput(f"the form cannot be read: {error}") from None
        if not self.shared.sessions.holds(self.request.browser, headers, fields.get("csrf", "")):
            raise Refused(
                "forbidden",
                "this form is not from a page of this server, or the server was started again since. Open the page again.",
            )
        return fields


PageRoute = tuple[str, str, Scope | None, Callable[[Visit], Awaitable[Response]]]
"""A row of the inspector's table of routes: method, path, the scope that is needed (if any), and the function that
responds."""


def viewer_of(shared: Shared, request: Request, inner: str) -> Viewer:
    """Return what the templates need to know about the caller of a page. A token's namespace is a part of the store
    with threads of its own; `inner` is the part of it that the page shows, empty for all of it. `shared` is what all
    pages of the service share."""
    token = request.token
    tenant = "" if token.namespace == EVERY_NAMESPACE else token.namespace
    return Viewer(
        can_write=token.allows("append"),
        has_tokens=shared.settings.needs_token,
        label=token.label,
        namespace="/".join(filter(None, (tenant, inner))),
        csrf=shared.sessions.proof(request.browser),
        store=_store_for_commands(shared.settings, request),
        is_nested=bool(inner),
    )


def _store_for_commands(settings: Settings, request: Request) -> str:
    """Return the URL by which commands on a page name the store: the URL of this server, under the host name that the
    browser used.

    The URL is given even if this is the default store of this machine: the command may be run in a shell with another
    default.
    """
    named = request.headers.get(b"host", b"").decode("latin-1")
    host = named if _HOST.fullmatch(named) else f"{settings.host}:{settings.port}"
    return f"{'https' if request.is_secure else 'http'}://{host}"


def turn_of(fields: dict[str, str]) -> int:
    return _number("turn", fields.get("turn", ""))


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise InvalidInput(f"{name} is a whole number from 0 on, not {text[:40]!r}")
    return int(text)


def html(content: Markup, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with the page `content`, the headers that all pages have, and the further `headers`."""
    return Response(
        content.encode("utf-8", "replace"), "text/html", status=status, headers={**HEADERS, **(headers or {})}
    )
