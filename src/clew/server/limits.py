"""Limits on what the callers of a service may hold at a time: request bodies in memory, and responses that are streams."""

from __future__ import annotations

from collections import Counter

from clew.server.auth import NOBODY, Token
from clew.server.failures import Refused
from clew.server.settings import Settings

__all__ = ["Bodies", "Room", "Streams"]

_NOBODY = "nobody"


class Bodies:
    """Counts the bytes that are in memory of request bodies, and of blobs on their way to clients that may never take
    them: of all callers and of each token.

    Callers without a token, who can only send the login form, get 1/16 of the limit together, so that they cannot take
    what the others need.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_bodies
        self._held: Counter[str] = Counter()
        self._total = 0

    @property
    def held(self) -> int:
        """The bytes of all bodies that are in memory now."""
        return self._total

    def take(self, token: Token, size: int) -> None:
        """Count `size` more bytes of a body. Raises `Refused`, and counts nothing, if that is more than the limit."""
        is_known = token is not NOBODY
        who = token.sha256 if is_known else _NOBODY
        if self._held[who] + size > self._most // (2 if is_known else 16) or self._total + size > self._most:
            raise Refused(
                "limited", "the server holds as many unfinished requests and responses as it has memory for.", 1
            )
        self._held[who] += size
        self._total += size

    def give_back(self, token: Token, size: int) -> None:
        """Count `size` bytes no more."""
        who = token.sha256 if token is not NOBODY else _NOBODY
        self._held[who] -= size
        self._total -= size
        if not self._held[who]:
            del self._held[who]


class Room:
    """The memory that the body of one request takes, and a large response to it, counted in the `Bodies` of the
    service."""

    __slots__ = ("_bodies", "_size", "_token")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._token: Token = NOBODY
        self._size = 0

    def take(self, token: Token, size: int) -> None:
        """Count `size` more bytes for the caller with this token. Raises `Refused` if there is no room for them."""
        self._bodies.take(token, size)
        self._token = token
        self._size += size

    def give_back(self, size: int) -> None:
        """Give back `size` bytes of those taken."""
        self._bodies.give_back(self._token, size)
        self._size -= size

    def leave(self) -> None:
        """Give back what was taken, because the request has ended."""
        if self._size:
            self._bodies.give_back(self._token, self._size)
            self._size = 0


class Streams:
    """Counts the responses of each token that are being sent as a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def enter(self, token: Token) -> bool:
        """Count one more stream of this token. Returns False, and counts nothing, if it has as many as it may have."""
        if self._open[token.sha256] >= self._most:
            return False
        self._open[token.sha256] += 1
        return True

    def leave(self, token: Token) -> None:
        """Count one stream of this token less."""
        self._open[token.sha256] -= 1
        if not self._open[token.sha256]:
            del self._open[token.sha256]
