"""What a MySQL URL says: where the server is, who asks, and which tables are Clew's. Never shown: it may hold a password."""

from __future__ import annotations

import re
import ssl
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import msgspec

from clew.errors import InvalidInput

__all__ = ["Address", "parse", "tls_context"]

_FORM = "Write mysql://user:password@host:3306/database, with special characters percent-encoded (@ is %40)."
_OPTIONS = ("connections", "prefix", "ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify", "unix_socket")
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """One store on one server."""

    host: str
    port: int
    user: str
    password: bytes
    database: str
    unix_socket: str | None
    tls: bool
    tls_files: tuple[str | None, str | None, str | None]
    """The authorities to trust, and this client's certificate and key."""
    tls_verify: bool
    prefix: str
    """How the names of the store's tables begin."""
    connections: int
    """The most to have open at once."""

    @property
    def name(self) -> str:
        """The server and the database, for people: no user, no password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.unix_socket or f'{host}:{self.port}'}/{self.database}"

    def __repr__(self) -> str:
        return f"Address({self.name!r}, prefix={self.prefix!r})"


def parse(url: str, prefix: str | None, connections: int | None) -> Address:
    """The address that a URL names; what is given beside it goes before what the URL says."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput(f"a MySQL URL whose host or port does not parse. {_FORM}") from None
    if parts.scheme != "mysql" or not url.startswith("mysql://"):
        raise InvalidInput(f"this is no MySQL URL. {_FORM}")
    if "@" in parts.netloc.rpartition("@")[0] or "@" in parts.path or parts.fragment:
        raise InvalidInput(f"a MySQL URL has one @ at most, before the host, and no #. {_FORM}")
    database = _text(parts.path.removeprefix("/"), "the database")
    if not database or "/" in database:
        raise InvalidInput(f"a MySQL URL names one database after the host. {_FORM}")
    given = _options(parts.query)
    files = given.get("ssl_ca"), given.get("ssl_cert"), given.get("ssl_key")
    tls = _truth(given, "ssl", any(files) or "ssl_verify" in given)
    if not tls and (any(files) or "ssl_verify" in given):
        raise InvalidInput("a MySQL URL with ssl=false has no other options of TLS. Leave out one or the other.")
    return Address(
        host=parts.hostname or "localhost",
        port=3306 if port is None else port,
        user=_text(parts.username or "", "the user"),
        password=unquote_to_bytes(parts.password or ""),
        database=database,
        unix_socket=given.get("unix_socket") or None,
        tls=tls,
        tls_files=files,
        tls_verify=_truth(given, "ssl_verify", True),
        prefix=_checked_prefix(given.get("prefix", "clew_") if prefix is None else prefix),
        connections=_checked_connections(given.get("connections", 8) if connections is None else connections),
    )


def tls_context(address: Address) -> ssl.SSLContext | None:
    """What to encrypt the connection with; None is a plain one. Reads files, so it is made when connecting."""
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
        raise InvalidInput(f"{what} in a MySQL URL is no UTF-8 once its % are decoded. {_FORM}") from None
    if "\0" in text:
        raise InvalidInput(f"{what} in a MySQL URL cannot hold NUL characters. {_FORM}")
    return text


def _options(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            shown = repr(name) if re.fullmatch("[a-z_]{1,40}", name) else "that is given"
            raise InvalidInput(f"a MySQL URL has no option {shown}. Known: {', '.join(_OPTIONS)}.")
        if name in given:
            raise InvalidInput(f"a MySQL URL gives {name} twice.")
        given[name] = value
    return given


def _truth(given: dict[str, str], name: str, default: bool) -> bool:
    value = given.get(name)
    if value is not None and value.lower() not in _TRUTHS:
        raise InvalidInput(f"{name} in a MySQL URL is true or false, not {value!r}")
    return default if value is None else _TRUTHS[value.lower()]


def _checked_prefix(prefix: object) -> str:
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidInput(
            f"{prefix!r} is no prefix of tables: up to 40 letters, digits and underscores, no digit first"
        )
    return prefix


def _checked_connections(connections: object) -> int:
    text = str(connections)
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= 1000):
        raise InvalidInput(f"{connections!r} is no number of connections: 1 to 1000")
    return int(text)
