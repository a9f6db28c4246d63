"""What an OpenSearch URL says: where the cluster is, who asks, and how threads are kept there."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from clew.checkpointers._urls import count, given_options, number, truth, why_unparsed, without_password
from clew.errors import InvalidInput

__all__ = ["Address", "Options", "check_options", "parse_url"]

_KNOWN = ("ca_file", "index_messages", "replicas", "shards", "timeout", "tls", "verify")
_PREFIX = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_FORM = "Write opensearch://host:9200/index-prefix, with a password opensearch://user:password@host:9200?tls=true"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster, or what stands before the nodes. Shown without the password."""

    host: str
    port: int = 9200
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"opensearch://{host}:{self.port}"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster is reached, and how its indices are made if they are not there."""

    prefix: str = "clew"
    tls: bool | None = None
    """None: not said, which is plain HTTP, and refused where a password would go over a network."""
    ca_file: str | None = None
    verify: bool = True
    timeout: float = 30.0
    shards: int = 1
    replicas: int | None = None
    """None: one where there is a second node, none where there is not."""
    index_messages: bool = False


def parse_url(url: str) -> tuple[Address, Options]:
    """Take a URL apart, or say what is wrong with it without showing the password."""
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"{shown}: {why_unparsed(error)}. {_FORM}") from None
    if parts.scheme != "opensearch" or not url.startswith("opensearch://"):
        raise InvalidInput(f"{shown} is no OpenSearch URL. {_FORM}")
    if not parts.hostname:
        raise InvalidInput(f"{shown} names no host. {_FORM}")
    if parts.fragment:
        raise InvalidInput(f"{shown}: a # in a password is written %23. {_FORM}")
    given = given_options(parts.query, _KNOWN, shown)
    address = Address(
        host=parts.hostname,
        port=9200 if port is None else port,
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
    )
    options = Options(
        prefix=parts.path.strip("/") or "clew",
        tls=truth(given, "tls", shown) if "tls" in given else None,
        ca_file=given.get("ca_file"),
        verify=truth(given, "verify", shown) if "verify" in given else True,
        timeout=number(given, "timeout", shown) if "timeout" in given else 30.0,
        shards=count(given, "shards", shown) if "shards" in given else 1,
        replicas=count(given, "replicas", shown) if "replicas" in given else None,
        index_messages="index_messages" in given and truth(given, "index_messages", shown),
    )
    return address, options


def check_options(address: Address, options: Options) -> None:
    """What no cluster could do, and what nobody should."""
    if not _PREFIX.fullmatch(options.prefix):
        raise InvalidInput(
            f"{options.prefix[:120]!r} is no prefix of index names: up to 100 lower-case letters, digits and . _ - that "
            "start with a letter or a digit."
        )
    if not 0 < options.timeout <= 3600:
        raise InvalidInput(f"a timeout is more than 0 and at most 3600 seconds, not {options.timeout:g}")
    if not 1 <= options.shards <= 1024:
        raise InvalidInput(f"an index has 1 to 1024 shards, not {options.shards}")
    if options.replicas is not None and not 0 <= options.replicas <= 100:
        raise InvalidInput(f"an index has 0 to 100 replicas, not {options.replicas}")
    if address.password is not None and options.tls is None and not _is_here(address.host):
        raise InvalidInput(
            f"{address}: a password would go over the network in the clear. Add tls=true to the URL; or tls=false, "
            "if nobody else can listen there."
        )
    if not options.tls and (options.ca_file is not None or not options.verify):
        raise InvalidInput(f"{address}: ca_file and verify are for TLS. Add tls=true to the URL.")
    if options.ca_file is not None and not Path(options.ca_file).exists():
        raise InvalidInput(f"{address}: there is no ca_file {options.ca_file!r}")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
