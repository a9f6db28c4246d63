"""What a Redis URL says: where the server is, who asks, and how threads are kept there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from clew.errors import InvalidInput

__all__ = ["Address", "Options", "check_options", "parse_url"]

_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_cert_reqs", "ssl_check_hostname", "ssl_keyfile")
_OWN = ("cluster", "prefix", "timeout", "ttl", "wait_replicas")
_WAYS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_MOST_SECONDS = 10 * 366 * 86_400.0


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A server, or one that knows the others of its cluster. Shown without the password."""

    host: str
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: dict[str, str | bool] | None = None
    """Settings of TLS; None is a plain connection."""

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'redis' if self.tls is None else 'rediss'}://{host}:{self.port}/{self.db}"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How threads are kept. All that share a store give the same prefix."""

    prefix: str = "clew:"
    ttl: float | None = None
    cluster: bool = False
    wait_replicas: int = 0
    timeout: float = 30.0


def parse_url(url: str) -> tuple[Address, Options]:
    """Take a URL apart, or say what is wrong with it without showing the password."""
    shown = _without_password(url)
    if "#" in url:
        raise InvalidInput(f"{shown}: a # in a password is written %23. {_FORM}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"{shown}: {_plain(error)}. {_FORM}") from None
    if parts.scheme not in ("redis", "rediss") or not url.startswith(f"{parts.scheme}://"):
        raise InvalidInput(f"{shown} is no Redis URL. {_FORM}")
    if not parts.hostname:
        raise InvalidInput(f"{shown} names no host. {_FORM}")
    path = parts.path.strip("/")
    if path and not (path.isascii() and path.isdigit() and len(path) <= 6):
        raise InvalidInput(f"{shown}: {path!r} is no database number. {_FORM}")
    given = _options(parts.query, shown)
    tls: dict[str, str | bool] = {name: value for name, value in given.items() if name in _TLS}
    if tls and parts.scheme == "redis":
        raise InvalidInput(f"{shown}: {', '.join(tls)} is for rediss:// URLs, which use TLS.")
    if "ssl_check_hostname" in given:
        tls["ssl_check_hostname"] = _truth(given, "ssl_check_hostname", shown)
    options = Options(
        prefix=given.get("prefix", "clew:"),
        ttl=_number(given, "ttl", shown) if "ttl" in given else None,
        cluster="cluster" in given and _truth(given, "cluster", shown),
        wait_replicas=int(_number(given, "wait_replicas", shown)) if "wait_replicas" in given else 0,
        timeout=_number(given, "timeout", shown) if "timeout" in given else 30.0,
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
    """What no server could do."""
    prefix = options.prefix
    if not prefix or not prefix.isascii() or not prefix.isprintable() or len(prefix) > 100 or set("{} ") & set(prefix):
        raise InvalidInput(f"{prefix!r} is no prefix of keys: 1 to 100 visible ASCII characters without braces.")
    if options.ttl is not None and not 1 <= options.ttl <= _MOST_SECONDS:
        raise InvalidInput(f"a ttl is 1 second to 10 years, not {options.ttl:g} s")
    if not 0 < options.timeout <= 3600:
        raise InvalidInput(f"a timeout is more than 0 and at most 3600 seconds, not {options.timeout:g}")
    if not 0 <= options.wait_replicas <= 1000:
        raise InvalidInput(f"wait_replicas is 0 to 1000, not {options.wait_replicas}")
    if options.cluster and address.db:
        raise InvalidInput(f"{address}: a cluster has database 0 alone. Leave the number out.")
    if options.cluster and options.wait_replicas:
        raise InvalidInput(
            f"{address}: wait_replicas does not work in a cluster. Set min-replicas-to-write in each server instead."
        )


_FORM = "Write redis://host:6379/0, with a password redis://:password@host:6379/0, with TLS rediss://"


def _without_password(url: str) -> str:
    """The URL as errors show it. Also where it cannot be parsed, nothing before the last @ is shown."""
    scheme, _, rest = url.partition(":")
    rest = rest.removeprefix("//")
    return repr(f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}")


def _plain(error: ValueError) -> str:
    """Why a URL does not parse; without the value, for what is taken for a port may be part of a password."""
    return "its port is no number up to 65535" if "ort" in str(error) else "its host does not parse"


def _options(query: str, shown: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OWN + _TLS:
            raise InvalidInput(f"{shown}: no option {name!r}. Known: {', '.join(_OWN + _TLS)}.")
        if name in given:
            raise InvalidInput(f"{shown}: {name} is given twice.")
        given[name] = value
    return given


def _truth(given: Mapping[str, str], name: str, shown: str) -> bool:
    if given[name].lower() not in _WAYS:
        raise InvalidInput(f"{shown}: {name} is true or false, not {given[name]!r}")
    return _WAYS[given[name].lower()]


def _number(given: Mapping[str, str], name: str, shown: str) -> float:
    try:
        number = float(given[name])
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (name == "wait_replicas" and not number.is_integer()):
        raise InvalidInput(f"{shown}: {name} is a number, not {given[name]!r}")
    return number
