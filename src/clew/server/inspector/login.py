"""Who looks at the pages: a cookie that holds the token of the login form, and the proof that a form came from here."""

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
    """What a browser sends along: a token, and the namespace inside that of the token."""

    __slots__ = ("namespace", "token")

    def __init__(self, token: str = "", namespace: str = "") -> None:
        self.token = token
        self.namespace = namespace


def session_of(headers: Mapping[bytes, bytes]) -> Session:
    """An absent or senseless cookie is an empty session: the pages ask for a token then."""
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        token, _, namespace = cookies[COOKIE].value.partition(".")
        return Session(urlsafe_b64decode(token).decode("ascii"), urlsafe_b64decode(namespace).decode())
    except (CookieError, KeyError, ValueError):
        return Session()


def with_session(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The headers of a request for a page, as an API client with the cookie's token would send them."""
    session = session_of(headers)
    found = dict(headers)
    if session.token:
        found.setdefault(b"authorization", b"Bearer " + session.token.encode())
    if session.namespace:
        found.setdefault(NAMESPACE_HEADER.encode(), encode_text(session.namespace).encode())
    return found


def cookie_for(session: Session, *, secure: bool) -> str:
    """It ends with the browser's session, is kept from scripts and from other sites, and from the network where there is
    TLS."""
    if not session.token.isascii():
        raise InvalidInput("a token has ASCII characters only")
    value = ".".join(urlsafe_b64encode(part.encode()).decode() for part in (session.token, session.namespace))
    return f'{COOKIE}="{value}"; Path=/; HttpOnly; SameSite=Strict{"; Secure" if secure else ""}'


def no_cookie(*, secure: bool) -> str:
    return f"{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


class Forms:
    """Proofs for forms: made from who looks and a secret of this process. Another site can send a form here, but not with
    the proof, which stands in pages that only their reader can read."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def proof(self, headers: Mapping[bytes, bytes]) -> str:
        session = session_of(headers)
        who = f"{session.token}\0{session.namespace}".encode()
        return hmac.new(self._secret, who, sha256).hexdigest()[:40]

    def holds(self, headers: Mapping[bytes, bytes], given: str) -> bool:
        """Whether a form that was sent came from a page of ours."""
        same = headers.get(b"sec-fetch-site", b"same-origin") in (b"same-origin", b"none")
        return same and hmac.compare_digest(self.proof(headers).encode(), given.encode("utf-8", "replace"))
