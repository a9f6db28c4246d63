"""The settings of a service, and its limits on request bodies."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import msgspec

from clew import advice
from clew.checkpointers.base import MAX_APPEND, MAX_HEAD
from clew.errors import InvalidInput
from clew.server.auth import Token

__all__ = ["CONNECTION", "MAX_APPEND_BODY", "MAX_QUERY_BODY", "MAX_SMALL_BODY", "Settings"]

CONNECTION = "clew.connection"
"""The key under which the ASGI scope of a request has the `Connection`, the object for the client's connection."""
MAX_APPEND_BODY = MAX_APPEND + 8 * 2**20
"""The largest request body, in bytes, that appends frames or uploads several blobs. Besides the frames there is room
for a head and many refs (digests of blobs)."""
MAX_SMALL_BODY = 8 * 2**20
"""The largest request body, in bytes, that has a list of digests."""
MAX_QUERY_BODY = 4 * MAX_HEAD
"""The largest request body, in bytes, that has a query for the heads of threads."""

_COUNTS = ("max_connections", "max_connections_per_address", "max_connections_per_token", "max_streams")
_TIMES = ("header_timeout", "body_timeout", "send_timeout", "idle_timeout")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a service, which the options of `clew serve` set."""

    store: str
    """The URL of the checkpointer behind the service."""
    host: str = "127.0.0.1"
    port: int = 8420
    socket: Path | None = None
    """The path of a unix socket to listen on instead of `host` and `port`. Only this user can connect to it, so it needs
    no tokens."""
    tokens: tuple[Token, ...] = ()
    """The tokens that are accepted, beside those of `token_file`."""
    token_file: Path | None = None
    """A file of further tokens. When it changes, it is read again, without a restart."""
    no_token: bool = False
    """Whether to serve without any token. Every caller may then do everything, so the service must listen on a loopback
    address; and every user and program of this machine is such a caller."""
    made_token: str = ""
    """The secret of the token that `serve` made for this run of the service, if it made one. It is the only secret that
    a link may carry: `/login?token=…` signs a browser in."""
    rate: float | None = None
    """The requests per second that each token may make in the long run. None is no limit."""
    burst: int | None = None
    """How many requests a token may make at once after a quiet time. None is as many as `rate` allows in one second."""
    max_blob: int = 64 * 2**20
    """The largest blob that is accepted, in bytes. While a blob is received or sent, it is in memory as a whole."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxies: tuple[str, ...] = ()
    """Addresses or networks of the proxies in front of the service. Only they are believed about whom a request comes
    from and whether it came over TLS (`X-Forwarded-For`, `X-Forwarded-Proto`)."""
    quota_file: Path | None = None
    """The ledger of what each tenant keeps, a SQLite file. It is needed for `tenant_threads` and `tenant_bytes`."""
    tenant_threads: int | None = None
    """The most threads that a tenant, the namespace of a token, may have. None is no limit."""
    tenant_bytes: int | None = None
    """The most bytes of frames and blobs that a tenant may keep. None is no limit."""
    tenant_rate: float | None = None
    """The requests per second that all tokens of a tenant may make together. None is no limit."""
    audit: Path | None = None
    """The file of the audit log. None is no audit log."""
    audit_required: bool = False
    """Whether a request that cannot be recorded in the audit log is refused."""
    access_log: bool = True
    grace: float = 30.0
    """The most seconds that the service takes to end once it is told to stop. Most of this time is for the requests
    under way."""
    max_connections: int = 1000
    """The most connections at a time. It is less if the system lets the process open fewer files."""
    max_connections_per_address: int = 100
    """The most connections from one address on which no token was shown yet. An IPv6 network of 64 bits counts as one
    address. A further connection ends the oldest of these."""
    max_connections_per_token: int = 500
    """The most connections on which one token is used."""
    max_streams: int = 256
    """The most responses that are sent as a stream to one token at a time: long reads, and pages that follow a thread."""
    max_bodies: int = 256 * 2**20
    """The most bytes of request bodies in memory at a time, and of large blobs on their way to clients. One token gets up
    to half of them."""
    header_timeout: float = 10.0
    """Seconds in which a client must send the head of a request: the request line and the headers."""
    body_timeout: float = 30.0
    """Seconds in which a client must send the body of a request. The client gets one more second for each 16 KiB that
    have arrived."""
    send_timeout: float = 60.0
    """Seconds for which a client may take nothing of the response that is sent to it. After that its connection is
    ended."""
    idle_timeout: float = 75.0
    """Seconds for which a connection without a request stays open. A client of Clew sends no request on a connection
    that was idle for 30 seconds. A shorter time here could close a connection while a request is on its way, and the
    request would be lost."""

    @property
    def is_personal(self) -> bool:
        """Whether the service is for the person who started it, on this machine: it has no tokens but the one that was
        made at its start."""
        return not self.needs_token or bool(self.made_token)

    @property
    def needs_token(self) -> bool:
        """Whether callers must have a token: the settings name tokens or a token file. This does not change if all
        tokens in the file are revoked."""
        return bool(self.tokens) or self.token_file is not None

    def check(self) -> None:
        """Raise `InvalidInput` if a setting cannot work, such as a certificate without its key."""
        if not self.needs_token and not self.no_token and self.socket is None:
            raise InvalidInput(
                "the service has no tokens, so everybody who reaches it could read and delete everything. Give tokens "
                f"({advice.new_token()} makes one), listen on a unix socket, or say no_token=True"
            )
        if self.no_token and self.needs_token:
            raise InvalidInput("there are tokens, and --no-token says that there are none. Leave one of them out.")
        if self.socket is not None and (self.tls_cert or self.tls_key):
            raise InvalidInput("a unix socket does not leave this machine and takes no TLS. Leave the certificate out.")
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
        if self.max_bodies < 2 * max(self.max_blob, MAX_APPEND_BODY):
            raise InvalidInput(
                f"{self.max_bodies} bytes for request bodies are too few: one token gets half of them, and one body has up "
                f"to {max(self.max_blob, MAX_APPEND_BODY)} bytes. Allow twice as many, or smaller blobs."
            )
        for name in _COUNTS + _TIMES:
            if getattr(self, name) < (1 if name in _COUNTS else 0.001):
                raise InvalidInput(f"{name.replace('_', ' ')}: {getattr(self, name)} lets nothing through")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInput("TLS needs both files: the certificate and its key")
        limits = [one for one in (self.tenant_threads, self.tenant_bytes, self.tenant_rate) if one is not None]
        if any(limit <= 0 for limit in limits):
            raise InvalidInput("a quota of a tenant is more than 0; leave it out for no limit")
        if (self.tenant_threads or self.tenant_bytes) and self.quota_file is None:
            raise InvalidInput("quotas of threads and bytes need a file to count in. Give --quota-file FILE.")
        if self.audit_required and self.audit is None:
            raise InvalidInput("an audit log is required, and no file is named for it. Give --audit FILE.")
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy, strict=False)
            except ValueError:
                raise InvalidInput(
                    f"{proxy!r} is not the address of a proxy. Write an IP address or a network, such as 10.0.0.0/8."
                ) from None
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise InvalidInput(f"{path}: there is no such file for TLS")
