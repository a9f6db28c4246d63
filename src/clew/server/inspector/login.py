"""The login of the inspector: sessions that the server keeps, of which a browser has only a random id in a cookie; and
proofs (CSRF tokens) in forms, so that no other site can send them."""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple

from clew.server.auth import Rates, Token

__all__ = ["COOKIE", "Session", "Sessions", "browser_of", "cookie_for", "new_id", "no_cookie"]

COOKIE = "clew_session"
_ID = re.compile(r"[A-Za-z0-9_-]{43}")
_IDLE = 24 * 3600.0
"""Seconds without use after which a session ends."""
_LONGEST = 7 * 24 * 3600.0
"""Seconds after which a session ends even if it is used."""
_MOST = 100
"""The most sessions that one token has at a time. A further login ends the oldest of them."""
_TRIES = 10
_TRIES_PER_SECOND = 1 / 6
"""How many wrong tokens may be sent to the login form from one address: `_TRIES` at once, and `_TRIES_PER_SECOND` in
the long run."""


class Session(NamedTuple):
    """A login of a browser: the access token, the namespace (a part of the store with threads of its own) that the user
    chose within that of the token, and when the login began and was last used."""

    token: Token
    namespace: str
    began: float
    used: float


class Sessions:
    """The login sessions of a service, in memory. A session ends with the service, when the user signs out, when its
    token is revoked or expires, when it was unused or open for too long, and when too many newer sessions have the same
    token.

    The browser's cookie is a random id, which every browser gets with the first page that it opens. A login gives the
    browser a new id, so that somebody who knew the old id is not signed in too. Only the hash of an id is kept.

    Each form carries a proof which shows that a page of this service made it for this browser: the proof is made from
    the browser's id and a secret of this process. Another site can make a browser send a form here. But it cannot read
    a page, and a proof from a page that the other site fetched itself does not fit the id of the user's browser. That
    holds for the login form too, so nobody can sign another person's browser in with a token of their own.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._open: OrderedDict[bytes, Session] = OrderedDict()
        self._tries = Rates(_TRIES_PER_SECOND, _TRIES, lambda: time.monotonic())

    def start(self, token: Token, namespace: str) -> str:
        """Begin a login session with this token, and return the new random id for the browser's cookie. `namespace` is
        the part of the token's namespace (a part of the store with threads of its own) that the user chose; empty for
        all of it."""
        mine = [key for key, session in self._open.items() if session.token.sha256 == token.sha256]
        for key in mine[: max(0, len(mine) - _MOST + 1)]:
            del self._open[key]
        browser, now = new_id(), time.monotonic()
        self._open[_key(browser)] = Session(token, namespace, now, now)
        return browser

    def find(self, browser: str) -> Session | None:
        """Return the login session of the browser with this id. None if the browser is not signed in, or if its session
        has ended because it was unused or open for too long."""
        session = self._open.get(_key(browser))
        if session is None:
            return None
        now = time.monotonic()
        if now - session.began > _LONGEST or now - session.used > _IDLE:
            self.end(browser)
            return None
        self._open[_key(browser)] = session._replace(used=now)
        return session

    def end(self, browser: str) -> None:
        """End the login session of the browser with this id. After that, a copy of the browser's cookie is of no use
        either."""
        self._open.pop(_key(browser), None)

    def proof(self, browser: str) -> str:
        return hmac.new(self._secret, browser.encode(), sha256).hexdigest()[:40]

    def holds(self, browser: str, headers: Mapping[bytes, bytes], given: str) -> bool:
        """Return whether a form that was sent is from a page that this service made for the same browser: `given`, the
        proof in the form, must fit, and `headers`, those of the request, must not name another site as the sender."""
        same = headers.get(b"sec-fetch-site", b"same-origin") in (b"same-origin", b"none")
        return same and hmac.compare_digest(self.proof(browser).encode(), given.encode("utf-8", "replace"))

    def wait(self, address: str) -> int:
        """Return for how many seconds the login form takes no token from this address, because too many wrong tokens
        came from it; 0 if the form takes one now."""
        return self._tries.wait(address, count=False)

    def failed(self, address: str) -> None:
        """Count a wrong token that was sent from this address."""
        self._tries.wait(address)


def new_id() -> str:
    return secrets.token_urlsafe(32)


def _key(browser: str) -> bytes:
    return sha256(browser.encode()).digest()


def browser_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the random id in the browser's cookie, which this service gave it. Empty if there is no such cookie in the
    headers, or if its value cannot be such an id."""
    try:
        found = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))[COOKIE].value
    except (CookieError, KeyError):
        return ""
    return found if _ID.fullmatch(found) else ""


def cookie_for(browser: str, *, secure: bool) -> str:
    """Return the value of the `Set-Cookie` header that gives a browser its id.

    Scripts cannot read the cookie, and the browser deletes it when it is closed. With `secure`, the browser sends it
    over TLS only. The browser does not send it with a form of another site. It does send it when the user follows a
    link from another site, so that a link in a chat works; this is safe, because opening a page changes nothing.
    """
    return f"{COOKIE}={browser}; Path=/; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"


def no_cookie(*, secure: bool) -> str:
    """Return the value of the `Set-Cookie` header that deletes the cookie with the browser's id. `secure` says that the
    cookie was set for TLS only."""
    return f"{COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
