"""A request for a page: who looks, at which store, what a form sent. Also makes the response, with the headers that all
pages have."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from litestar import Request, Response

from clew.checkpointers.http.protocol import NAMESPACE_HEADER, decode_text
from clew.checkpointers.registry import default_url
from clew.errors import InvalidInput
from clew.server.auth import EVERY_NAMESPACE, Scope, in_store
from clew.server.failures import Refused
from clew.server.inspector.login import Forms
from clew.server.inspector.templates import Markup
from clew.server.inspector.timelines import Readers
from clew.server.request import KEY, Call
from clew.server.settings import Settings
from clew.server.stores import Use
from clew.server.wire import whole

__all__ = [
    "HEADERS",
    "AnyRequest",
    "Desk",
    "Viewer",
    "Visit",
    "check_proof",
    "form_of",
    "html",
    "turn_of",
    "viewer_of",
]

AnyRequest = Request[Any, Any, Any]

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of every page. They make browsers load nothing from other servers, run only the inspector's own script, refuse
to show a page in a frame, and keep no copy."""

_LARGEST_FORM = 2**20
_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


class Viewer(NamedTuple):
    """What the templates need to know about the person who looks at a page: rights, name and namespace."""

    can_write: bool = False
    has_tokens: bool = False
    label: str = ""
    namespace: str = ""
    csrf: str = ""
    store: str = ""
    """The URL to name with --store in commands that the page shows. Empty if that is this machine's default store."""
    is_nested: bool = False
    """Whether the page shows a namespace that lies within the namespace of the token, instead of the token's namespace
    itself."""


class Desk:
    """What all pages of a service share: the settings, a cache of timelines, and the secret from which the proofs in
    forms are made."""

    def __init__(self, settings: Settings, stopping: Callable[[], bool]) -> None:
        self.settings = settings
        self.stopping = stopping
        self.readers = Readers()
        self.forms = Forms()

    @property
    def secure(self) -> bool:
        """Whether browsers send the login cookie over TLS only, which they do if the service uses TLS."""
        return self.settings.tls_cert is not None


class Visit:
    """One request for a page. The constructor raises `Refused` if the viewer's token lacks `scope`."""

    def __init__(self, request: AnyRequest, scope: Scope = "read") -> None:
        self.request = request
        self.desk: Desk = request.app.state.desk
        self.call: Call = request.scope[KEY]  # type: ignore[literal-required]
        self.call.need(scope)

    @property
    def inner(self) -> str:
        """The namespace that the client named, within the namespace of its token. Empty if it named none."""
        named = self.call.headers.get(NAMESPACE_HEADER.encode(), b"").decode("latin-1")
        return decode_text("a namespace", named) if named else ""

    @property
    def namespace(self) -> str:
        """The namespace in the store: that of the token, joined with the one that the client named."""
        return in_store(self.call.token.namespace, self.inner)

    @property
    def viewer(self) -> Viewer:
        return viewer_of(self.desk, self.call, self.inner)

    @property
    def thread_id(self) -> str:
        return self.call.thread_id(self.request.path_params["thread"])

    def store(self) -> Use:
        return self.call.store()

    def number(self, name: str) -> int | None:
        """Return a query parameter as a whole number; None if it is not given. Raises `InvalidInput` if it is no
        number."""
        text = self.request.query_params.get(name, "")
        return _number(name, text) if text else None

    async def form(self) -> dict[str, str]:
        """Read the fields of the form that was sent. Raises `Refused` for a form that another site sent, or that was
        made before the service was started again."""
        fields = await form_of(self.request.receive, self.call.headers)
        check_proof(self.desk, self.call.headers, fields)
        return fields


async def form_of(receive: Any, headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Read the fields of a form from the body of a request. If a name occurs more than once, its last value counts.
    Raises `InvalidInput` for a body that is no form."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/x-www-form-urlencoded":
        raise InvalidInput("an action is sent by the form of its page")
    body = bytes(await whole(receive, headers, _LARGEST_FORM))
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=500))
    except ValueError as error:
        raise InvalidInput(f"the form cannot be read: {error}") from None


def viewer_of(desk: Desk, call: Call, inner: str) -> Viewer:
    token = call.token
    tenant = "" if token.namespace == EVERY_NAMESPACE else token.namespace
    return Viewer(
        can_write="write" in token.scopes,
        has_tokens=bool(desk.settings.tokens),
        label=token.label,
        namespace="/".join(filter(None, (tenant, inner))),
        csrf=desk.forms.proof(call.headers),
        store=_store_for_commands(desk.settings, call.headers),
        is_nested=bool(inner),
    )


def _store_for_commands(settings: Settings, headers: Mapping[bytes, bytes]) -> str:
    """Return the URL by which commands on a page name the store: that of this server, under the host name that the
    browser used.

    Empty for the default store of a service without tokens: the browser then runs on the same machine as the service,
    where commands find that store by themselves.
    """
    if not settings.tokens and settings.store == default_url() and not os.environ.get("CLEW_STORE"):
        return ""
    named = headers.get(b"host", b"").decode("latin-1")
    host = named if _HOST.fullmatch(named) else f"{settings.host}:{settings.port}"
    is_safe = settings.tls_cert is not None or headers.get(b"x-forwarded-proto") == b"https"
    return f"{'https' if is_safe else 'http'}://{host}"


def check_proof(desk: Desk, headers: Mapping[bytes, bytes], fields: dict[str, str]) -> None:
    if not desk.forms.holds(headers, fields.get("csrf", "")):
        raise Refused(
            "forbidden",
            "this form is not from a page of this server, or the server was started again since. Open the page again.",
        )


def turn_of(fields: dict[str, str]) -> int:
    return _number("turn", fields.get("turn", ""))


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise InvalidInput(f"{name} is a whole number from 0 on, not {text[:40]!r}")
    return int(text)


def html(content: Markup, status: int = 200, **headers: str) -> Response[bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(
        content.encode("utf-8", "replace"),
        media_type="text/html; charset=utf-8",
        status_code=status,
        headers={**HEADERS, **named},
    )
