"""Opens the checkpointer for a URL. Installed packages add URL schemes through the entry point group
`clew.checkpointers`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from clew._runtime import plugins
from clew.checkpointers.base import Checkpointer
from clew.checkpointers.marks import Marks
from clew.checkpointers.sealed import SealedCheckpointer
from clew.errors import InvalidInput
from clew.log.keys import Keyring

__all__ = ["data_folder", "default_url", "open_checkpointer"]

GROUP = "clew.checkpointers"

_BUILT_IN = {
    "az": "clew.checkpointers.objects:ObjectCheckpointer",
    "file": "clew.checkpointers.files:FileCheckpointer",
    "gs": "clew.checkpointers.objects:ObjectCheckpointer",
    "http": "clew.checkpointers.http:HTTPCheckpointer",
    "https": "clew.checkpointers.http:HTTPCheckpointer",
    "memory": "clew.checkpointers.memory:MemoryCheckpointer",
    "mysql": "clew.checkpointers.mysql:MySQLCheckpointer",
    "oci": "clew.checkpointers.objects.oci:OCICheckpointer",
    "opensearch": "clew.checkpointers.opensearch:OpenSearchCheckpointer",
    "oracle": "clew.checkpointers.oracle:OracleCheckpointer",
    "postgres": "clew.checkpointers.postgres:PostgresCheckpointer",
    "postgresql": "clew.checkpointers.postgres:PostgresCheckpointer",
    "redis": "clew.checkpointers.redis:RedisCheckpointer",
    "rediss": "clew.checkpointers.redis:RedisCheckpointer",
    "s3": "clew.checkpointers.objects:ObjectCheckpointer",
    "sqlite": "clew.checkpointers.sqlite:SQLiteCheckpointer",
}


class Opener(Protocol):
    """The type of a checkpointer class that an entry point in the group `clew.checkpointers` names. The class method
    `from_url` opens a URL whose scheme is the name of the entry point."""

    def from_url(self, url: str, namespace: str = "") -> Checkpointer: ...


def open_checkpointer(
    url: str | None = None,
    namespace: str = "",
    *,
    key: str | bytes | Iterable[str | bytes] | None = None,
    allow_plain: bool | None = None,
    marks: str | Path | None = None,
) -> Checkpointer:
    """Open the checkpointer that a URL names. Without a URL, open the one that the environment variable `CLEW_STORE`
    names, or else a SQLite file in the user's data folder. The checkpointer connects when it is first used. `namespace`
    selects a part of the store that shares nothing with its other namespaces.

    URLs are, for example, `sqlite:///relative.db`, `sqlite:////absolute.db`, `file:///absolute/dir`,
    `file:relative/dir` and `memory://`. Servers and object storage have schemes of their own, and installed packages
    add more.

    With `key`, or else the environment variable `CLEW_KEY`, all that is written is encrypted, and reading anything
    unencrypted raises an error. A key is 32 bytes, or these bytes as hex or base64 text. Of several keys the first
    encrypts and all decrypt. With `allow_plain`, or `CLEW_ALLOW_PLAIN=1`, data that was written without a key is read
    too. `marks`, or `CLEW_MARKS`, is a folder outside the store that remembers how long each thread was, so that an
    older copy is recognised. `allow_plain` and `marks` can only be used with a key.
    """
    url = default_url() if url is None else url
    scheme, colon, rest = url.partition(":")
    if not colon or not scheme:
        is_path = url and not set(url) & set("@?#:")
        named, path = (repr(url), url) if is_path else ("this", "clew.db")
        raise InvalidInput(f"{named} is not the URL of a store. For a SQLite file write sqlite:///{path}")
    scheme = scheme.lower()
    checkpointer = _opener(scheme).from_url(f"{scheme}:{rest}", namespace)
    keys = _keyring(key, allow_plain)
    marks = marks or os.environ.get("CLEW_MARKS") or None
    if keys is None:
        if allow_plain or marks:
            raise InvalidInput("allow_plain and marks are for a store with a key: give one as key= or CLEW_KEY")
        return checkpointer
    return SealedCheckpointer(checkpointer, keys, marks=None if marks is None else Marks(marks))


def _keyring(key: str | bytes | Iterable[str | bytes] | None, allow_plain: bool | None) -> Keyring | None:
    if allow_plain is None:
        allow_plain = os.environ.get("CLEW_ALLOW_PLAIN", "0") not in ("", "0")
    if key is not None:
        return Keyring(key, allow_plain=allow_plain)
    text = os.environ.get("CLEW_KEY")
    return Keyring.from_text(text, allow_plain=allow_plain) if text else None


def default_url() -> str:
    """Return the URL of the default store: the environment variable `CLEW_STORE` if it is set, else a SQLite file in
    the platform's folder for user data."""
    if url := os.environ.get("CLEW_STORE"):
        return url
    return f"sqlite:///{data_folder() / 'clew.db'}"


def data_folder() -> Path:
    """Return the folder in which Clew keeps files of this user. It may not exist yet."""
    home = Path.home()
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return folder / "clew"


_SCHEME = re.compile("[a-z][a-z0-9+.-]{0,30}")
"""Matches a text that can be the scheme of a URL. If the text before the colon does not match, it may be part of a
password, and errors do not quote it."""


def _opener(scheme: str) -> Opener:
    try:
        opener: Opener = plugins.find(scheme, _BUILT_IN, GROUP, f"the {scheme} store")
    except plugins.Unknown as unknown:
        guess = f" Did you mean {unknown.close}:?" if unknown.close else ""
        named = f"{scheme!r} URLs" if _SCHEME.fullmatch(scheme) else "such a URL"
        raise InvalidInput(f"no store for {named}.{guess} Known here: {unknown.known}.") from None
    return opener
