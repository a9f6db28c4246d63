"""Parses the URL of a Redis store into the server's address, with user and password, and the store's options."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import msgspec

from clew.checkpointers.patience import TIMEOUT, timeout_seconds
from clew.checkpointers.urls import (
    check_no_at_in_path,
    count,
    given_options,
    number,
    truth,
    why_unparsed,
    without_password,
)
from clew.errors import InvalidInput

__all__ = ["Address", "Options", "check_options", "parse_url"]

_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_cert_reqs", "ssl_check_hostname", "ssl_keyfile")
_OWN = ("cluster", "prefix", "timeout", "ttl", "wait_replicas")
_MOST_SECONDS = 10 * 366 * 86_400.0


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a Redis server, or of one server of a cluster, with user and password. Its printed form shows
    neither."""

    host: str
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: dict[str, str | bool] | None = None
    """The TLS settings, or None for an unencrypted connection."""

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'redis' if self.tls is None else 'rediss'}://{host}:{self.port}/{self.db}"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a Redis store: the start of all its keys (`prefix`), the seconds without an append after which a
    thread is deleted (`ttl`), whether the server is part of a cluster, how many replicas must confirm an append
    (`wait_replicas`), and the seconds without progress after which a call ends (`timeout`). All users of one store must
    give the same `prefix`."""

    prefix: str = "clew:"
    ttl: float | None = None
    cluster: bool = False
    wait_replicas: int = 0
    timeout: float = TIMEOUT


def parse_url(url: str) -> tuple[Address, Options]:
    """Parse a store's URL into its address and options. Raises `InvalidInput` if it is malformed; the message never
    shows the password."""
    shown = without_password(url)
    if "#" in url:
        raise InvalidInput(f"{shown}: a # in a password is written %23. {_FORM}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"{shown}: {why_unparsed(error)}. {_FORM}") from None
    if parts.scheme not in ("redis", "rediss") or not url.startswith(f"{parts.scheme}://"):
        raise InvalidInput(f"{shown} is not a Redis URL. {_FORM}")
    if not parts.hostname:
        raise InvalidInput(f"{shown} does not name a host. {_FORM}")
    check_no_at_in_path(parts, "a Redis URL", _FORM)
    path = parts.path.strip("/")
    if path and not (path.isascii() and path.isdigit() and len(path) <= 6):
        raise InvalidInput(f"{shown}: {path!r} is not a database number. {_FORM}")
    given = given_options(parts.query, _OWN + _TLS, shown)
    tls: dict[str, str | bool] = {name: value for name, value in given.items() if name in _TLS}
    if tls and parts.scheme == "redis":
        raise InvalidInput(f"{shown}: {', '.join(tls)} is for rediss:// URLs, which use TLS.")
    if "ssl_check_hostname" in given:
        tls["ssl_check_hostname"] = truth(given, "ssl_check_hostname", shown)
    options = Options(
        prefix=given.get("prefix", "clew:"),
        ttl=number(given, "ttl", shown) if "ttl" in given else None,
        cluster="cluster" in given and truth(given, "cluster", shown),
        wait_replicas=count(given, "wait_replicas", shown) if "wait_replicas" in given else 0,
        timeout=number(given, "timeout", shown) if "timeout" in given else TIMEOUT,
    )
    address = Address(
        host=parts.hostname,
        port=6379 if port is None else port,
        db=int(path or 0),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=tls if parts.scheme == "rediss" else None,
    )
    return address, options


def check_options(address: Address, options: Options) -> None:
    """Raise `InvalidInput` if an option is out of range, or if two options, or an option and this address, exclude each
    other."""
    prefix = options.prefix
    if not prefix or not prefix.isascii() or not prefix.isprintable() or len(prefix) > 100 or set("{} ") & set(prefix):
        raise InvalidInput(f"{prefix!r} is not a key prefix. Use 1 to 100 visible ASCII characters without braces.")
    if options.ttl is not None and not 1 <= options.ttl <= _MOST_SECONDS:
        raise InvalidInput(f"a ttl is 1 second to 10 years, not {options.ttl:g} s")
    timeout_seconds(options.timeout)
    if not 0 <= options.wait_replicas <= 1000:
        raise InvalidInput(f"wait_replicas is 0 to 1000, not {options.wait_replicas}")
    if options.cluster and address.db:
        raise InvalidInput(f"{address}: a cluster has only database 0. Leave the number out.")
    if options.cluster and options.wait_replicas:
        raise InvalidInput(
            f"{address}: wait_replicas does not work in a cluster. Set min-replicas-to-write in each server instead."
        )


_FORM = "Write redis://host:6379/0, with a password redis://:password@host:6379/0, with TLS rediss://"
