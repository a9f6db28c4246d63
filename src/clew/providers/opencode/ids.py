"""Names in opencode's own form: a prefix, 12 hexadecimal digits of a time and a count, and 14 characters drawn by lot."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from hashlib import blake2b

from clew.errors import InvalidInput

__all__ = ["Namer", "checked", "is_session", "new_session", "now"]

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BITS = 48
_COUNTS = 4096
_ROUND = 2**_BITS // _COUNTS
"""Milliseconds after which the digits begin anew, which is 2.2 years."""
_SESSION = re.compile(r"ses_[0-9a-f]{12}[0-9A-Za-z]{14}")


def now() -> int:
    """Milliseconds, as opencode counts time."""
    return time.time_ns() // 1_000_000


def new_session() -> str:
    """Sessions count downwards, so that the newest is first."""
    digits = ~(now() * _COUNTS + secrets.randbelow(_COUNTS)) % 2**_BITS
    return f"ses_{digits:012x}" + "".join(secrets.choice(_BASE62) for _ in range(14))


def is_session(name: str) -> bool:
    return _SESSION.fullmatch(name) is not None


def checked(key: str) -> str:
    """The key, which becomes the name of files: it must be what opencode calls a session."""
    if not is_session(key):
        raise InvalidInput(f"{key!r} cannot be the name of a session of opencode's; OpenCode.new_key() makes one")
    return key


class Namer:
    """Names for the messages and parts of a conversation that is written for opencode: each is after the one before, and
    all are before what opencode will add, for it goes by that order. The same seed and time give the same names."""

    def __init__(self, seed: str, at: int, clock: Callable[[], int] = now) -> None:
        present = clock()
        self._at = at if at <= present and at // _ROUND == present // _ROUND else present
        self._seed = seed
        self._count = 0

    @property
    def time(self) -> int:
        """The time of the next name: one millisecond for each thousand names."""
        return self._at + self._count // 1000

    def next(self, prefix: str) -> str:
        digits = (self.time * _COUNTS + self._count % 1000 + 1) % 2**_BITS
        lot = int.from_bytes(blake2b(f"{self._seed} {self._count}".encode(), digest_size=16).digest())
        self._count += 1
        tail = ""
        for _ in range(14):
            lot, place = divmod(lot, 62)
            tail += _BASE62[place]
        return f"{prefix}_{digits:012x}{tail}"
