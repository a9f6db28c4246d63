"""Parses the URL of a MySQL store into the server's address, the login, the TLS settings and Clew's own options.

The URL may hold a password, so errors and logs never show it.
"""

from __future__ import annotations

import re
import ssl
from urllib.parse import unquote_to_bytes

import msgspec

from clew.checkpointers.patience import TIMEOUT, timeout_seconds
from clew.checkpointers.urls import connection_count, given_options, split_server_url, truth
from clew.errors import InvalidInput

__all__ = ["Address", "parse", "tls_context"]

_FORM = "Write mysql://user:password@host:3306/database, with special characters percent-encoded (@ is %40)."
_OPTIONS = ("connections", "prefix", "ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify", "timeout", "unix_socket")
_SHOWN = "the MySQL URL"
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where one MySQL store is and how to connect to it."""

    host: str
    port: int
    user: str
    password: bytes
    database: str
    unix_socket: str | None
    tls: bool
    tls_files: tuple[str | None, str | None, str | None]
    """Paths of three files: the trusted certificate authorities, this client's certificate, and this client's key. None
    for a file that the URL does not name."""
    tls_verify: bool
    prefix: str
    """The text with which the names of all tables of the store start."""
    connections: int
    """The maximum number of connections that one engine (the pool of one event loop) keeps open at once."""
    timeout: float
    """Seconds without progress after which a call raises `Unavailable`."""

    @property
    def name(self) -> str:
        """The server and the database, for logs and errors. Holds no user and no password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.unix_socket or f'{host}:{self.port}'}/{self.database}"

    def __repr__(self) -> str:
        return f"Address({self.name!r}, prefix={self.prefix!r})"


def parse(url: str, prefix: str | None, connections: int | None, timeout: float | None) -> Address:
    """Parse a store's URL into an `Address`. `prefix` is the text with which the names of all tables start,
    `connections` the most connections to open, and `timeout` the seconds without progress after which a call ends. If
    given, these three override the options of the same names in the URL.

    Raises `InvalidInput` for a malformed URL; the message never holds a password.
    """
    parts = split_server_url(url, "mysql", "a MySQL URL", _FORM)
    database = _text(parts.path.removeprefix("/"), "the database")
    if not database or "/" in database:
        raise InvalidInput(f"a MySQL URL names one database after the host. {_FORM}")
    given = given_options(parts.query, _OPTIONS, _SHOWN)
    files = given.get("ssl_ca"), given.get("ssl_cert"), given.get("ssl_key")
    needs_tls = any(files) or "ssl_verify" in given
    tls = truth(given, "ssl", _SHOWN) if "ssl" in given else needs_tls
    if needs_tls and not tls:
        raise InvalidInput("a MySQL URL with ssl=false cannot have other TLS options. Remove ssl=false or the others.")
    return Address(
        host=parts.hostname or "localhost",
        port=3306 if parts.port is None else parts.port,
        user=_text(parts.username or "", "the user"),
        password=unquote_to_bytes(parts.password or ""),
        database=database,
        unix_socket=given.get("unix_socket") or None,
        tls=tls,
        tls_files=files,
        tls_verify="ssl_verify" not in given or truth(given, "ssl_verify", _SHOWN),
        prefix=_checked_prefix(given.get("prefix", "clew_") if prefix is None else prefix),
        connections=connection_count(given.get("connections", 8) if connections is None else connections),
        timeout=timeout_seconds(given.get("timeout", TIMEOUT) if timeout is None else timeout),
    )


def tls_context(address: Address) -> ssl.SSLContext | None:
    """Return the TLS context for connections, or None for unencrypted ones. Raises `InvalidInput` if the certificate
    files cannot be used. Reads these files, so it is called when connecting and not when the URL is parsed."""
    if not address.tls:
        return None
    authorities, certificate, key = address.tls_files
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"the files for TLS to {address.name} cannot be used: {error}") from None
    if not address.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _text(quoted: str, what: str) -> str:
    try:
        text = unquote_to_bytes(quoted).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{what} in a MySQL URL is not UTF-8 after percent-decoding. {_FORM}") from None
    if "\0" in text:
        raise InvalidInput(f"{what} in a MySQL URL must not hold NUL characters. {_FORM}")
    return text


def _checked_prefix(prefix: object) -> str:
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidInput(
            f"{prefix!r} is not a table prefix. Use up to 40 letters, digits and underscores, not starting with a digit."
        )
    return prefix
