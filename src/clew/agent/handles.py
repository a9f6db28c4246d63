"""Write and read handles: strings with which any process can continue a session, of the built-in agent or of a provider.

    {"version": 1, "provider": "codex", "session_id": "thread-7", "resume_key": "0199…"}

These four fields are required, in any order, and they are enough. Other programs store handles, and may write them.
There are four optional fields: `cwd` and `store` are hints, `expires` is a time with its zone, and `signature` proves
where the handle comes from.

The signature is the HMAC-SHA256, in hex, with the user's key. It covers `clew-handle`, a line break, and all other fields
as JSON with sorted keys, no spaces, and no escapes that JSON does not require. Fields that the reader does not know are
covered too.

A handle is a secret like a password. The error for a handle that is refused never quotes its ids, key or hints.
"""

from __future__ import annotations

import hmac
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from clew import advice
from clew.errors import InvalidInput

__all__ = ["VERSION", "Handle", "expiry", "read_handle", "without_credentials", "write_handle"]

VERSION = 1
LONGEST = 16 * 1024
_DOMAIN = b"clew-handle\n"
_PATHS = frozenset({"file", "memory", "sqlite"})
"""URL schemes of stores whose URLs hold only a path, and so no secret."""
_BUCKETS = frozenset({"az", "gs", "oci", "s3"})
"""URL schemes of object stores. Their URLs never hold a user name: an @ in such a URL is part of another name."""
_HARMLESS = frozenset(
    {
        *("account", "auth", "ca_file", "cluster", "config_dir", "connections", "dsn", "endpoint", "host", "port"),
        *("prefix", "protocol", "region", "schema", "sslmode", "ssl", "tls", "ttl", "verify", "virtual_hosted"),
        *("wallet_location", "wait_replicas", "timeout"),
    }
)
"""Options in a store's URL that are known to be no secret. Every other option is removed before a URL is shown."""


class Handle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a handle, the string with which any process can continue a session. `read_handle` also returns this
    for a bare session id; `provider` and `resume_key` are empty then."""

    version: int
    provider: str
    session_id: str
    resume_key: str
    cwd: str = ""
    """A hint: the folder in which the session worked."""
    store: str = ""
    """A hint: the URL of the store that holds the thread, without user, password or any other secret."""
    expires: datetime | None = None
    signature: str = ""


def write_handle(
    provider: str,
    session_id: str,
    resume_key: str,
    *,
    cwd: str = "",
    store: str = "",
    expires: datetime | None = None,
    key: str | bytes | None = None,
) -> str:
    """Return a handle: a string with which any process can continue a session.

    `provider` is the name of a provider, or `clew` for the built-in agent. `resume_key` is the id by which the provider
    knows the conversation. `cwd`, the folder, and `store`, the URL of the store, are hints for the process that reads
    the handle. Credentials in the URL are left out.

    With `key` the handle is signed. With `expires` it is refused from that time on. Raises `InvalidInput` if `provider`
    or `session_id` is empty, `expires` has no time zone, or the handle would be too long.
    """
    if not provider or not session_id:
        raise InvalidInput("a handle needs a provider and a session id that are not empty.")
    if expires is not None:
        if expires.tzinfo is None:
            raise InvalidInput("expires= needs a time zone: datetime.now(UTC) + timedelta(days=1), for example.")
        expires = expires.astimezone(UTC).replace(microsecond=0)
    handle = Handle(
        version=VERSION,
        provider=provider,
        session_id=session_id,
        resume_key=resume_key,
        cwd=cwd,
        store=without_credentials(store),
        expires=expires,
    )
    fields: dict[str, Any] = msgspec.to_builtins(handle)
    if key is not None:
        fields["signature"] = _sign(fields, key)
    text = _canonical(fields, sort=False).decode()
    if len(text.encode()) > LONGEST:
        raise InvalidInput(f"a handle has up to {LONGEST} bytes, and this one would be longer. Leave the hints out.")
    return text


def expiry(lifetime: object) -> datetime | None:
    """Return the time from which on a handle that is made now is refused; None if `lifetime` is None. Raises
    `InvalidInput` if `lifetime` is anything else than a `timedelta`, or too long."""
    if lifetime is None:
        return None
    if not isinstance(lifetime, timedelta):
        raise InvalidInput(
            f"expires_in={lifetime!r} is not a timedelta. Write for example expires_in=timedelta(hours=1)."
        )
    try:
        return datetime.now(UTC) + lifetime
    except OverflowError:
        raise InvalidInput(
            f"expires_in={lifetime!r} is too long. Leave it out for a handle that never expires."
        ) from None


def read_handle(text: str, *, key: str | bytes | None = None, now: datetime | None = None) -> Handle:
    """Read a handle (a string with which any process can continue a session) or a bare session id, and return its
    fields. Raises `InvalidInput`, with the reason, if it is refused.

    With `key`, only a handle that was signed with this key is accepted. Without it, signatures are not checked. An
    expired handle is refused, signed or not. `now` is the time that the expiry is compared with; the default is the
    current time.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a handle is a text, and not of type {type(text).__name__}.")
    if not text.strip():
        raise InvalidInput("this handle is empty. Give one, or the id of a session.")
    if len(text.encode("utf-8", "surrogatepass")) > LONGEST:
        raise InvalidInput(f"this handle is longer than {LONGEST} bytes, which is the limit. Give only the handle.")
    if not text.lstrip().startswith("{"):
        if key is not None:
            raise InvalidInput("this handle is a bare session id, and a signed one is required.")
        if '"' in text and "resume_key" in text:
            raise InvalidInput(
                "this is not a whole handle, which begins with '{'. Give the text exactly as session.resume_handle has it."
            )
        return Handle(version=VERSION, provider="", session_id=text, resume_key="")
    fields = _fields(text)
    _check_version(fields)
    try:
        handle = msgspec.convert(fields, Handle, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"this is not a valid handle: {error}") from None
    if not handle.provider or not handle.session_id:
        raise InvalidInput("this handle of a session has no provider or no session id in it.")
    if key is not None:
        _check_signature(fields, key)
    _check_expiry(handle, now)
    return handle


def _fields(text: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise InvalidInput(
            "this is not a valid handle: it begins like JSON, but is not valid JSON. Is it cut off?"
        ) from None
    return fields


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _check_version(fields: dict[str, Any]) -> None:
    version = fields.get("version")
    if type(version) is not int or version < 1:
        raise InvalidInput("this is not a valid handle: its version is not a whole number of 1 or more.")
    if version > VERSION:
        raise InvalidInput(
            f"this handle has version {version}; this Clew reads up to {VERSION}. Upgrade with: {advice.upgrade()}"
        )


def _check_signature(fields: dict[str, Any], key: str | bytes) -> None:
    signature = fields.pop("signature", "")
    if not signature:
        raise InvalidInput("this handle is not signed, and a signed one is required.")
    if not hmac.compare_digest(signature.encode("utf-8", "surrogatepass"), _sign(fields, key).encode()):
        raise InvalidInput("the signature of this handle is wrong: it was changed, or signed with another key.")


def _check_expiry(handle: Handle, now: datetime | None) -> None:
    if handle.expires is None:
        return
    if handle.expires.tzinfo is None:
        raise InvalidInput("this is not a valid handle: its time of expiry has no time zone.")
    if handle.expires <= (now or datetime.now(UTC)):
        raise InvalidInput(f"this handle has expired, on {handle.expires.astimezone(UTC):%Y-%m-%d at %H:%M} UTC.")


def _sign(fields: dict[str, Any], key: str | bytes) -> str:
    secret = key.encode() if isinstance(key, str) else key
    if not secret:
        raise InvalidInput("the key for handles is empty. Give a long random one: secrets.token_hex(32)")
    return hmac.digest(secret, _DOMAIN + _canonical(fields), "sha256").hex()


def _canonical(fields: dict[str, Any], *, sort: bool = True) -> bytes:
    text = json.dumps(fields, sort_keys=sort, separators=(",", ":"), ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("a handle cannot contain half a surrogate pair.") from None


def without_credentials(url: str) -> str:
    """Return the URL of a store without user, password and anything else that may be a secret.

    Returns an empty string if it is not certain which parts of the URL are secret.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        return ""
    if scheme.lower() in _PATHS:
        return url
    place, *others = re.split(r"[?#]", rest, maxsplit=1)
    query = others[0] if others else ""
    if scheme.lower() not in _BUCKETS:
        if "@" in query:
            return ""
        slashes = "//" if place.startswith("//") else ""
        place = slashes + place.removeprefix("//").rpartition("@")[2]
    kept = [(name, value) for name, value in parse_qsl(query) if name in _HARMLESS and "@" not in value]
    return f"{scheme}:{place}" + (f"?{urlencode(kept, safe='/:')}" if kept else "")
