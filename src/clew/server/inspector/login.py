"""The login of the inspector: a cookie that holds the token, and proofs (CSRF tokens) in forms, so that no other site
can send them."""

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
    """What the login cookie holds: a token, and the namespace that the user chose within the token's namespace."""

    __slots__ = ("namespace", "token")

    def __init__(self, token: str = "", namespace: str = "") -> None:
        self.token = token
        self.namespace = namespace


def session_of(headers: Mapping[bytes, bytes]) -> Session:
    """Read the login session from the cookie in a request's headers. Returns an empty session if the cookie is missing
    or unreadable; the login form is then shown."""
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        token, _, namespace = cookies[COOKIE].value.partition(".")
        return Session(urlsafe_b64decode(token).decode("ascii"), urlsafe_b64decode(namespace).decode())
    except (CookieError, KeyError, ValueError):
        return Session()


def with_session(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the headers with the token and the namespace from the cookie added, in the form in which an API client
    sends them. Headers that are present already stay."""
    session = session_of(headers)
    found = dict(headers)
    if session.token:
        found.setdefault(b"authorization", b"Bearer " + session.token.encode())
    if session.namespace:
        found.setdefault(NAMESPACE_HEADER.encode(), encode_text(session.namespace).encode())
    return found


def cookie_for(session: Session, *, secure: bool) -> str:
    """Return the value of the `Set-Cookie` header that stores a login session in the browser. Raises `InvalidInput` if
    the session's token has characters that are not ASCII.

    The browser deletes the cookie when it is closed. Scripts cannot read the cookie, other sites cannot send it, and
    with `secure` the browser sends it over TLS only.
    """
    if not session.token.isascii():
        raise InvalidInput("the token has a character that is not ASCII. Copy the token again.")
    value = ".".join(urlsafe_b64encode(part.encode()).decode() for part in (session.token, session.namespace))
    return f'{COOKIE}="{value}"; Path=/; HttpOnly; SameSite=Strict{"; Secure" if secure else ""}'


def no_cookie(*, secure: bool) -> str:
    """Return the value of the `Set-Cookie` header that deletes the login cookie. `secure` says that the cookie was set
    for TLS only."""
    return f"{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


class Forms:
    """Makes and checks the proof that each form carries: a text which shows that a page of this service made the form.

    The proof is made from the login session and a secret of this process. Another site can make a browser send a form
    here, but it cannot read a page of this service, and so cannot copy the proof.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def proof(self, headers: Mapping[bytes, bytes]) -> str:
        session = session_of(headers)
        who = f"{session.token}\0{session.namespace}".encode()
        return hmac.new(self._secret, who, sha256).hexdigest()[:40]

    def holds(self, headers: Mapping[bytes, bytes], given: str) -> bool:
        """Return whether a form that was sent is from a page of this service: `given`, the proof in the form, must be
        right, and `headers`, those of the request, must not name another site as the sender."""
        same = headers.get(b"sec-fetch-site", b"same-origin") in (b"same-origin", b"none")
        return same and hmac.compare_digest(self.proof(headers).encode(), given.encode("utf-8", "replace"))
