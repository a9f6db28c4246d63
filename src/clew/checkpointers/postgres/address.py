"""What a PostgreSQL URL says: where libpq connects, and what is Clew's own. Never shown: it may hold a password."""

from __future__ import annotations

import re
from urllib.parse import unquote

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from clew.errors import InvalidInput

__all__ = ["Address", "parse"]

SCHEMA = "clew"
CONNECTIONS = 8

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
"""A peer that is gone without a word is found within a minute; libpq's own default is hours."""


class Address(msgspec.Struct, frozen=True):
    """One store on one server."""

    conninfo: str
    """For libpq; may hold a password."""
    name: str
    """The server and the database, for people: no user, no password."""
    schema: str
    connections: int
    """The most to have open at once."""

    def __repr__(self) -> str:
        return f"Address({self.name!r}, schema={self.schema!r})"


def parse(url: str, schema: str | None, connections: int | None) -> Address:
    """The address that a URL names; what is given beside it goes before what the URL says."""
    scheme, slashes, rest = url.partition("://")
    if not slashes or scheme not in ("postgresql", "postgres"):
        raise InvalidInput(f"this is no PostgreSQL URL. {_FORM}")
    login, at, place = rest.partition("@")
    if not at or "/" in login:  # libpq looks for a user only before the first slash
        login, at, place = "", "", rest
    place, _, query = place.partition("?")
    if "@" in place:
        raise InvalidInput(f"a PostgreSQL URL has one @ at most, before the host. {_FORM}")
    own, theirs = _options(query)
    base = f"{scheme}://{login}{at}{place}"
    try:
        found = conninfo_to_dict(f"{base}?{theirs}" if theirs else base)
    except psycopg.Error as error:
        raise InvalidInput(f"a PostgreSQL URL that libpq cannot read: {_reason(error)}. {_FORM}") from None
    for port in str(found.get("port") or "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidInput(f"the port in a PostgreSQL URL is a number from 1 to 65535. {_FORM}")
    settings = _DEFAULTS | {name: str(value) for name, value in found.items() if value is not None}
    return Address(
        make_conninfo("", **settings),
        _name(settings),
        _checked_schema(own.get("schema", SCHEMA) if schema is None else schema),
        _checked_connections(own.get("connections", CONNECTIONS) if connections is None else connections),
    )


def _options(query: str) -> tuple[dict[str, str], str]:
    """Clew's own options, and the rest as it was written."""
    own: dict[str, str] = {}
    theirs: list[str] = []
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        if name in ("schema", "connections"):
            own[name] = unquote(value)
        else:
            theirs.append(part)
    return own, "&".join(theirs)


def _reason(error: psycopg.Error) -> str:
    """libpq quotes what it could not read, and that may be a piece of a password: only an option's name is repeated."""
    named = re.search(r'query parameter: "([a-z_]{1,40})"', str(error))
    return f"it knows no option {named[1]!r}" if named else "a part of it is malformed"


def _name(found: dict[str, str]) -> str:
    host = found.get("host") or found.get("hostaddr") or found.get("service") or "localhost"
    port = f":{found['port']}" if found.get("port") else ""
    return f"{host}{port}/{found.get('dbname') or found.get('user') or ''}"


def _checked_schema(schema: object) -> str:
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidInput(
            f"{schema!r} is no schema name for Clew: up to 63 letters, digits and underscores, not beginning with pg_"
        )
    return schema


def _checked_connections(connections: object) -> int:
    try:
        number = int(str(connections))
    except ValueError:
        number = 0
    if not 1 <= number <= 1000:
        raise InvalidInput(f"{connections!r} is no number of connections: 1 to 1000")
    return number
