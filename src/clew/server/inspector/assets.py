"""The style sheet, the script and the icon of the inspector. Their URLs contain a hash of the content, so that browsers
may keep them."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

__all__ = ["asset", "asset_url"]

_TYPES = {"inspector.css": "text/css", "inspector.js": "text/javascript", "favicon.svg": "image/svg+xml"}


@cache
def _read(name: str) -> tuple[str, bytes]:
    data = (files("clew.server.inspector") / "static" / name).read_bytes()
    stem, _, ending = name.rpartition(".")
    return f"{stem}.{sha256(data).hexdigest()[:12]}.{ending}", data


def asset_url(name: str) -> str:
    return f"/assets/{_read(name)[0]}"


def asset(hashed: str) -> tuple[bytes, str] | None:
    """Return the bytes and the media type of the file whose URL has this name, which contains a hash. None if there is
    no such file."""
    for name, kind in _TYPES.items():
        current, data = _read(name)
        if current == hashed:
            return data, kind
    return None
