"""Limits on what the callers of a service may hold at a time: request bodies in memory, and responses that are streams."""

from __future__ import annotations

from collections import Counter

from clew.server.auth import NOBODY, Token
from clew.server.failures import Refused
from clew.server.settings import Settings

__all__ = ["Bodies", "Room", "Streams"]

_NOBODY = "nobody"


class Bodies:
    """Counts the bytes of request bodies, and of large responses on their way to clients, that are in memory: for all
    callers together, and for each token. Refuses what exceeds the limit that the settings name; one token gets at most
    half of the limit.

    Callers without a token, who can only send the login form, get at most 1/16 of the limit together. So they cannot
    take the memory that others need.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_bodies
        self._held: Counter[str] = Counter()
        self._total = 0

    @property
    def held(self) -> int:
        """The bytes that are counted now: all request bodies and large responses in memory."""
        return self._total

    def take(self, token: Token, size: int) -> None:
        """Count `size` more bytes for the caller with this token. Raises `Refused`, and counts nothing, if that exceeds
        the limit."""
        is_known = token is not NOBODY
        who = token.sha256 if is_known else _NOBODY
        if self._held[who] + size > self._most // (2 if is_known else 16) or self._total + size > self._most:
            raise Refused(
                "limited", "the server holds as many unfinished requests and responses as it has memory for.", 1
            )
        self._held[who] += size
        self._total += size

    def give_back(self, token: Token, size: int) -> None:
        """Stop counting `size` bytes of the caller with this token, because they are no longer in memory."""
        who = token.sha256 if token is not NOBODY else _NOBODY
        self._held[who] -= size
        self._total -= size
        if not self._held[who]:
            del self._held[who]


class Room:
    """Counts the memory that one request takes for its body and for a large response. The bytes are counted in the
    `Bodies` of the service, and given back when the request has ended."""

    __slots__ = ("_bodies", "_size", "_token")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._token: Token = NOBODY
        self._size = 0

    def take(self, token: Token, size: int) -> None:
        """Count `size` more bytes of memory for this request, which has this access token. Raises `Refused`, and counts
        nothing, if that exceeds what the service or the caller may use."""
        self._bodies.take(token, size)
        self._token = token
        self._size += size

    def give_back(self, size: int) -> None:
        """Stop counting `size` bytes of this request, because they are no longer in memory."""
        self._bodies.give_back(self._token, size)
        self._size -= size

    def leave(self) -> None:
        """Stop counting the memory that this request takes, because the request has ended."""
        if self._size:
            self._bodies.give_back(self._token, self._size)
            self._size = 0


class Streams:
    """Counts the responses that are being sent as a stream now, for each access token, and limits their number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def enter(self, token: Token) -> bool:
        """Count one more stream of this token, and return True. Returns False, and counts nothing, if the token has as
        many streams as it may have."""
        if self._open[token.sha256] >= self._most:
            return False
        self._open[token.sha256] += 1
        return True

    def leave(self, token: Token) -> None:
        """Stop counting one stream of this token, because it has ended."""
        self._open[token.sha256] -= 1
        if not self._open[token.sha256]:
            del self._open[token.sha256]
