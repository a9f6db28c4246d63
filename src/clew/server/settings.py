"""The settings of a service, and its limits on request bodies."""

from __future__ import annotations

from pathlib import Path

import msgspec

from clew.checkpointers.base import MAX_APPEND
from clew.errors import InvalidInput
from clew.server.auth import Token

__all__ = ["MAX_APPEND_BODY", "MAX_SMALL_BODY", "Settings"]

MAX_APPEND_BODY = MAX_APPEND + 8 * 2**20
"""The largest request body, in bytes, that appends frames or uploads several blobs. Besides the frames there is room
for a head and many refs."""
MAX_SMALL_BODY = 8 * 2**20
"""The largest request body, in bytes, that has a query or a list of digests."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a service, which the options of `clew serve` set."""

    store: str
    """The URL of the checkpointer behind the service."""
    host: str = "127.0.0.1"
    port: int = 8420
    tokens: tuple[Token, ...] = ()
    """The tokens that are accepted. If there are none, every caller may do everything, so the service must listen on a
    loopback address."""
    rate: float | None = None
    """The requests per second that each token may make in the long run. None is no limit."""
    burst: int | None = None
    """How many requests a token may make at once after a quiet time. None is as many as `rate` allows in one second."""
    max_blob: int = 64 * 2**20
    """The largest blob that is accepted, in bytes. While a blob is received or sent, it is in memory as a whole."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    access_log: bool = True
    grace: float = 30.0
    """Seconds that the requests under way get to finish when the service stops."""

    def check(self) -> None:
        """Raise `InvalidInput` if a setting cannot work, such as a certificate without its key."""
        if not 0 <= self.port <= 65535:
            raise InvalidInput(f"port {self.port}: ports are 0 to 65535; 0 takes any that is free")
        if self.rate is not None and self.rate <= 0:
            raise InvalidInput(
                f"a rate of {self.rate} requests a second lets nothing through; leave it out for no limit"
            )
        if self.burst is not None and (self.rate is None or self.burst < 1):
            raise InvalidInput("a burst is 1 or more, and goes with a rate")
        if self.max_blob < 1 or self.grace < 0:
            raise InvalidInput("the largest blob has 1 byte or more, and the grace is 0 seconds or more")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInput("TLS needs both files: the certificate and its key")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise InvalidInput(f"{path}: there is no such file for TLS")
