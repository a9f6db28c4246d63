"""Parses the URL of an Oracle store into settings of python-oracledb (the driver) and Clew's own options.

The URL may hold a password, so errors and logs never show it.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import msgspec

from clew.checkpointers.patience import TIMEOUT, timeout_seconds
from clew.checkpointers.urls import connection_count, given_options, split_server_url, truth
from clew.errors import InvalidInput

__all__ = ["Address", "parse"]

_FORM = (
    "Write oracle://user:password@host:1521/service, or oracle://user:password@/?dsn=alias with config_dir=…; special "
    "characters are percent-encoded (@ is %40)."
)
_DRIVER = ("config_dir", "dsn", "protocol", "ssl_server_dn_match", "wallet_location", "wallet_password")
_OPTIONS = ("connections", "prefix", "timeout", *_DRIVER)
_SHOWN = "the Oracle URL"
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,11}")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where one Oracle store is and how to connect to it."""

    name: str
    """The server and the service, for logs and errors. Holds no user and no password."""
    prefix: str
    """The text with which the names of all tables of the store start."""
    timeout: float
    """Seconds without progress after which a call raises `Unavailable`."""
    settings: dict[str, Any]
    """The arguments for the driver's connection pool. They may hold passwords."""

    def __repr__(self) -> str:
        return f"Address({self.name!r}, prefix={self.prefix!r})"


def parse(url: str, prefix: str | None, connections: int | None, timeout: float | None) -> Address:
    """Parse a store's URL into an `Address`. `prefix` is the text with which the names of all tables start,
    `connections` the most connections to open, and `timeout` the seconds without progress after which a call ends. If
    given, these three override the options of the same names in the URL.

    Raises `InvalidInput` for a malformed URL; the message never holds a password.
    """
    parts = split_server_url(url, "oracle", "an Oracle URL", _FORM)
    given = given_options(parts.query, _OPTIONS, _SHOWN)
    service = unquote(parts.path.removeprefix("/"))
    settings: dict[str, Any] = {name: value for name, value in given.items() if name in _DRIVER}
    if "dsn" in settings and (parts.hostname or service):
        raise InvalidInput(f"an Oracle URL has either a host and a service or a dsn, not both. {_FORM}")
    if "dsn" not in settings:
        if not parts.hostname or not service or "/" in service:
            raise InvalidInput(f"an Oracle URL names a host and one service. {_FORM}")
        settings |= {
            "host": parts.hostname,
            "port": 1521 if parts.port is None else parts.port,
            "service_name": service,
        }
    if "ssl_server_dn_match" in settings:
        settings["ssl_server_dn_match"] = truth(given, "ssl_server_dn_match", _SHOWN)
    if settings.get("protocol", "tcp") not in ("tcp", "tcps"):
        raise InvalidInput(f"{_SHOWN}: protocol must be tcp or tcps")
    seconds = timeout_seconds(given.get("timeout", TIMEOUT) if timeout is None else timeout)
    settings |= {
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "min": 0,
        "max": connection_count(given.get("connections", 8) if connections is None else connections),
        "increment": 1,
        "tcp_connect_timeout": seconds,
    }
    name = given["dsn"] if _is_alias(given.get("dsn")) else _name(parts.hostname, settings)
    prefix = given.get("prefix", "clew_") if prefix is None else prefix
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidInput(
            f"{prefix!r} is not a table prefix. Use a letter, then up to 11 letters, digits and underscores."
        )
    return Address(name=name, prefix=prefix.lower(), timeout=seconds, settings=settings)


def _is_alias(dsn: str | None) -> bool:
    return dsn is not None and re.fullmatch(r"[A-Za-z0-9_.\-]{1,128}", dsn) is not None


def _name(host: str | None, settings: dict[str, Any]) -> str:
    return f"{host}:{settings['port']}/{settings['service_name']}" if host else "the dsn given"
