"""Parses the options in the URLs of stores. No error shows a password, or the value of an option."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, urlsplit

from clew.errors import InvalidInput

__all__ = [
    "check_no_at_in_path",
    "connection_count",
    "count",
    "file_options",
    "given_options",
    "is_loopback",
    "not_this",
    "number",
    "split_server_url",
    "truth",
    "why_unparsed",
    "without_options",
    "without_password",
]

_WAYS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def without_password(url: str) -> str:
    """Return a URL in a form that is safe to show in an error: in quotes, without user, password, options and fragment.
    Everything between the scheme and the last @ is removed, so the form is safe even for a URL that does not parse."""
    scheme, _, rest = url.partition(":")
    rest = rest.removeprefix("//")
    return repr(f"{scheme}://{_OPTIONS.split(rest.rpartition('@')[2])[0]}")


def without_options(url: str) -> str:
    """Return the URL of a local file or folder in a form that is safe to show in an error: in quotes and without
    options. A URL that seems to have a server, a user or a password was not meant for a file: from it, everything
    between the scheme and the last @ is removed too."""
    scheme, _, rest = url.partition(":")
    is_path = rest.startswith("///") or not rest.startswith("/")
    path = _OPTIONS.split(rest)[0]
    return repr(f"{scheme}:{path}") if is_path and "@" not in path.partition("/")[0] else without_password(url)


_OPTIONS = re.compile("[?#]")


def why_unparsed(error: ValueError) -> str:
    """Return in words why `urlsplit` refused a URL. `error` is the error that it raised. The result does not quote the
    URL, because what looks like a port may be part of a password."""
    return "its port is not a number up to 65535" if "ort" in str(error) else "its host does not parse"


def check_no_at_in_path(parts: SplitResult, kind: str, form: str) -> None:
    """Raise `InvalidInput` if the path in these parts of a URL has an @. Then a password probably has a / in it: what
    stands before the / was taken for host and port, and the rest of the password for a path. The error does not quote
    the URL. It calls the URL `kind` (such as "a Redis URL"), and ends with `form`, which says how to write such a URL.
    """
    if "@" in parts.path:
        raise InvalidInput(f"{kind} has no @ after its host. In a password, write / as %2F and @ as %40. {form}")


def split_server_url(url: str, scheme: str, kind: str, form: str) -> SplitResult:
    """Split the URL of a database server into its parts, the port among them.

    Raises `InvalidInput` unless it starts with `scheme`, its host and port parse, it has at most one @ and no #. The
    error does not quote the URL. It calls the URL `kind` (such as "a MySQL URL"), and ends with `form`, which says how
    to write such a URL.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidInput(f"the host or port in {kind} cannot be parsed. {form}") from None
    if parts.scheme != scheme or not url.startswith(f"{scheme}://"):
        raise InvalidInput(f"this is not {kind}. {form}")
    if "@" in parts.netloc.rpartition("@")[0] or "@" in parts.path or parts.fragment:
        raise InvalidInput(f"{kind} has at most one @, before the host, and no #. {form}")
    return parts


def given_options(query: str, known: Collection[str], shown: str) -> dict[str, str]:
    """Parse the query of a URL (`name=value&name=value`) and return its options by name.

    Raises `InvalidInput` if an option is not in `known` or is given twice. The error starts with `shown`, the URL
    without its password. The error names an unknown option only if that looks like a name: if a password has an
    unescaped ?, the rest of the password is parsed as an option, and must not be shown.
    """
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            wrong = f"there is no option {name!r}" if re.fullmatch("[a-z_]{1,40}", name) else "an option is unknown"
            raise InvalidInput(f"{shown}: {wrong}. Known options: {', '.join(known)}.")
        if name in given:
            raise InvalidInput(f"{shown}: {name} is given twice.")
        given[name] = value
    return given


def file_options(url: str) -> tuple[str, dict[str, str]]:
    """Split the URL of a local file or folder into the part before its options, and the options by name. The only
    option is `timeout`, the seconds without progress after which a call ends. Raises `InvalidInput` for any other
    option, and for a ? without an option, because a path with a ? may have been meant."""
    named, mark, query = url.partition("?")
    given = given_options(query, ("timeout",), without_options(url))
    if mark and not given:
        raise InvalidInput(f"{without_options(url)}: after the ? of a URL comes an option, such as timeout=30.")
    return named, given


def truth(given: Mapping[str, str], name: str, shown: str) -> bool:
    if given[name].lower() not in _WAYS:
        raise InvalidInput(f"{shown}: {name} must be true or false")
    return _WAYS[given[name].lower()]


def connection_count(value: object) -> int:
    """Check the option `connections`, as a URL or a caller gave it, and return it as an int: the most connections that
    a store may open. Raises `InvalidInput` unless it is a whole number from 1 to 1000."""
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= 1000):
        raise InvalidInput(f"connections must be a number from 1 to 1000{not_this(value)}")
    return int(text)


def not_this(value: object) -> str:
    """Return the end of an error message that refuses a value, such as ", not 0". Returns an empty text if the value is
    a string: then it comes from a URL, and may be a part of a password that was parsed as an option."""
    return "" if isinstance(value, str) else f", not {value!r}"


def number(given: Mapping[str, str], name: str, shown: str) -> float:
    try:
        found = float(given[name])
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidInput(f"{shown}: {name} must be a number")
    return found


def count(given: Mapping[str, str], name: str, shown: str) -> int:
    found = number(given, name, shown)
    if not found.is_integer():
        raise InvalidInput(f"{shown}: {name} must be a whole number")
    return int(found)


def is_loopback(host: str) -> bool:
    """Return whether this host, from a URL, is this machine: `localhost` or a loopback address. Other names are not
    looked up: they give False."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
