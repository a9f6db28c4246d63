"""The login of the inspector: a cookie with the token, and proofs that a form was sent from a page of this service."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from clew.checkpointers.http.protocol import NAMESPACE_HEADER, encode_text
from clew.errors import InvalidInput

__all__ = ["COOKIE", "Forms", "Session", "cookie_for", "no_cookie", "session_of", "with_session"]

COOKIE = "clew_session"


class Session:
    """The content of the cookie: a token, and a namespace inside the namespace of the token."""

    __slots__ = ("namespace", "token")

    def __init__(self, token: str = "", namespace: str = "") -> None:
        self.token = token
        self.namespace = namespace


def session_of(headers: Mapping[bytes, bytes]) -> Session:
    """Read the session from the cookie. A missing or unreadable cookie gives an empty session, so the login is shown."""
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        token, _, namespace = cookies[COOKIE].value.partition(".")
        return Session(urlsafe_b64decode(token).decode("ascii"), urlsafe_b64decode(namespace).decode())
    except (CookieError, KeyError, ValueError):
        return Session()


def with_session(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the headers with token and namespace of the cookie, as an API client would send them."""
    session = session_of(headers)
    found = dict(headers)
    if session.token:
        found.setdefault(b"authorization", b"Bearer " + session.token.encode())
    if session.namespace:
        found.setdefault(NAMESPACE_HEADER.encode(), encode_text(session.namespace).encode())
    return found


def cookie_for(session: Session, *, secure: bool) -> str:
    """Return the `Set-Cookie` header of a session.

    The cookie ends with the browser's session. Scripts cannot read it, other sites cannot send it, and with `secure` the
    browser sends it over TLS only.
    """
    if not session.token.isascii():
        raise InvalidInput("a token has ASCII characters only")
    value = ".".join(urlsafe_b64encode(part.encode()).decode() for part in (session.token, session.namespace))
    return f'{COOKIE}="{value}"; Path=/; HttpOnly; SameSite=Strict{"; Secure" if secure else ""}'


def no_cookie(*, secure: bool) -> str:
    """Return the `Set-Cookie` header that deletes the cookie."""
    return f"{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


class Forms:
    """Makes and checks the proofs that forms carry against cross-site requests.

    A proof is made from the session and a secret of this process. Another site can make a browser send a form here, but
    cannot read a page of this service to copy the proof from it.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def proof(self, headers: Mapping[bytes, bytes]) -> str:
        session = session_of(headers)
        who = f"{session.token}\0{session.namespace}".encode()
        return hmac.new(self._secret, who, sha256).hexdigest()[:40]

    def holds(self, headers: Mapping[bytes, bytes], given: str) -> bool:
        """Return whether a form with the proof `given` was sent from a page of this service."""
        same = headers.get(b"sec-fetch-site", b"same-origin") in (b"same-origin", b"none")
        return same and hmac.compare_digest(self.proof(headers).encode(), given.encode("utf-8", "replace"))
