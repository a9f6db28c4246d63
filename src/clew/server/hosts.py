"""Tell whether a host name or address can only be used on this machine. The same rule decides where a service without
tokens may listen, and to which names in the header `Host` such a service answers."""

from __future__ import annotations

import ipaddress
import re
import socket

from clew.errors import InvalidInput

__all__ = ["is_local", "is_local_header"]

_HEADER = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:\d{1,5})?")


def _is_loopback_name(name: str) -> bool:
    """Return whether this is a loopback address, or a name that always stands for one: `localhost`, and names below it.
    Other names are not looked up, because the owner of a name can change its address at any time."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        plain = name.lower().removesuffix(".")
        return plain == "localhost" or plain.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_local_header(host: str) -> bool:
    """Return whether the value of a header `Host` is a loopback name or address, with or without a port."""
    found = _HEADER.fullmatch(host.lower())
    return found is not None and _is_loopback_name(found[1].strip("[]"))


def is_local(host: str) -> bool:
    """Return whether only this machine can reach a service that listens on `host`, a name or an address. Returns False
    for an empty host. Raises `InvalidInput` if this machine finds no address for the name."""
    if not host:
        return False
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        raise InvalidInput(f"{host!r} is not an address or name that this machine knows") from None
    return _is_loopback_name(host) and all(_is_loopback_name(address.partition("%")[0]) for address in found)
