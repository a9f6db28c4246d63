"""Which methods a path has, as the document says: for requests with one that it has not."""

from __future__ import annotations

from clew.server.openapi import document

__all__ = ["allowed"]

_BY_SEGMENTS = {
    tuple(path.split("/")): ", ".join(sorted(map(str.upper, operations)))
    for path, operations in document()["paths"].items()
}


def allowed(path: str) -> str:
    """The methods of this path, for the header `Allow`; empty if there is no such path."""
    given = tuple(path.split("/"))
    if given in _BY_SEGMENTS:
        return _BY_SEGMENTS[given]
    for segments, methods in _BY_SEGMENTS.items():
        pairs = zip(segments, given, strict=False)
        if len(segments) == len(given) and all(wanted == got or wanted.startswith("{") for wanted, got in pairs):
            return methods
    return ""
