"""Parses the URL of a PostgreSQL store into the connection settings of libpq (PostgreSQL's client library) and Clew's
own options.

The URL may hold a password, so errors and logs never show it.
"""

from __future__ import annotations

import re

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from clew.checkpointers.patience import TIMEOUT, timeout_seconds
from clew.checkpointers.urls import connection_count, given_options
from clew.errors import InvalidInput

__all__ = ["Address", "parse"]

SCHEMA = "clew"
CONNECTIONS = 8

_OPTIONS = ("schema", "connections", "timeout")
_FORM = "Write postgresql://user:password@host:5432/database, with special characters percent-encoded (@ is %40)."
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_DEFAULTS = {
    "fallback_application_name": "clew",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Connection settings that apply unless the URL gives others. With them, the client notices within a minute that a
server has died without closing its connections. With libpq's own defaults, that takes hours."""


class Address(msgspec.Struct, frozen=True):
    """Where one PostgreSQL store is and how to connect to it."""

    conninfo: str
    """The connection string for libpq. It may hold a password."""
    name: str
    """The server and the database, for logs and errors. Holds no user and no password."""
    schema: str
    connections: int
    """The maximum number of connections that one engine (the pool of one event loop) keeps open at once."""
    timeout: float
    """Seconds without progress after which a call raises `Unavailable`."""

    def __repr__(self) -> str:
        return f"Address({self.name!r}, schema={self.schema!r})"


def parse(url: str, schema: str | None, connections: int | None, timeout: float | None) -> Address:
    """Parse a store's URL into an `Address`. `schema` is the database schema that holds the store, `connections` the
    most connections to open, and `timeout` the seconds without progress after which a call ends. If given, these three
    override the options of the same names in the URL.

    Raises `InvalidInput` for a malformed URL; the message never holds a password.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes or scheme not in ("postgresql", "postgres"):
        raise InvalidInput(f"this is not a PostgreSQL URL. {_FORM}")
    login, at, place = rest.partition("@")
    if not at or "/" in login:  # libpq looks for a user only before the first slash
        login, at, place = "", "", rest
    place, _, query = place.partition("?")
    if "@" in place or "#" in place:
        raise InvalidInput(f"a PostgreSQL URL has at most one @, before the host, and no #. {_FORM}")
    own, theirs = _options(query)
    base = f"{scheme}://{login}{at}{place}"
    try:
        found = conninfo_to_dict(f"{base}?{theirs}" if theirs else base)
    except UnicodeError:  # psycopg decodes libpq's error text, which may end within a character
        raise InvalidInput(f"a PostgreSQL URL is UTF-8. {_FORM}") from None
    except psycopg.Error as error:
        raise InvalidInput(f"libpq cannot read this PostgreSQL URL: {_reason(error)}. {_FORM}") from None
    for port in str(found.get("port") or "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidInput(f"the port in a PostgreSQL URL is a number from 1 to 65535. {_FORM}")
    settings = _DEFAULTS | {name: str(value) for name, value in found.items() if value is not None}
    return Address(
        make_conninfo("", **settings),
        _name(settings),
        _checked_schema(own.get("schema", SCHEMA) if schema is None else schema),
        connection_count(own.get("connections", CONNECTIONS) if connections is None else connections),
        timeout_seconds(own.get("timeout", TIMEOUT) if timeout is None else timeout),
    )


def _options(query: str) -> tuple[dict[str, str], str]:
    """Split the query string of a URL. Returns Clew's own options as a dict of decoded values, and all other options as
    a query string for libpq, left as written."""
    parts = query.split("&") if query else []
    own = [part for part in parts if part.partition("=")[0] in _OPTIONS]
    theirs = [part for part in parts if part.partition("=")[0] not in _OPTIONS]
    return given_options("&".join(own), _OPTIONS, "the PostgreSQL URL"), "&".join(theirs)


def _reason(error: psycopg.Error) -> str:
    """Return in words why libpq (PostgreSQL's client library) refused the URL. libpq's own error text may quote a part
    of the password, so it is not repeated, except for the name of an unknown option."""
    named = re.search(r'query parameter: "([a-z_]{1,40})"', str(error))
    return f"it does not know the option {named[1]!r}" if named else "a part of it is malformed"


def _name(found: dict[str, str]) -> str:
    host = found.get("host") or found.get("hostaddr") or found.get("service") or "localhost"
    port = f":{found['port']}" if found.get("port") else ""
    return f"{host}{port}/{found.get('dbname') or found.get('user') or ''}"


def _checked_schema(schema: object) -> str:
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidInput(
            f"{schema!r} is not a schema name for Clew. Use up to 63 letters, digits and underscores, not starting with a "
            "digit or with pg_."
        )
    return schema
