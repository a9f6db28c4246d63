"""Finds the class that reads the data of another system by the name of its kind, as in `clew import --from llm`."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path

from clew._runtime import plugins
from clew.compat.importers.base import Source
from clew.errors import InvalidInput

__all__ = ["GROUP", "KINDS", "find_source", "open_source", "source_kinds"]

GROUP = "clew.compat.importers"
"""The entry point group in which installed packages add kinds of data. An entry's name is the kind, and its value a
subclass of `Source`."""

_BUILT_IN = {
    "caw": "clew.compat.importers.caw:CawSource",
    "llm": "clew.compat.importers.llm:LlmLogs",
    "locus": "clew.compat.importers.locus:LocusData",
    "native": "clew.compat.importers.native:NativeSessions",
    "session": "clew.compat.importers.session:SessionSource",
    "stirrup": "clew.compat.importers.stirrup:StirrupSource",
}

KINDS: tuple[str, ...] = tuple(_BUILT_IN)


def source_kinds() -> tuple[str, ...]:
    """Return the names of all kinds of data that `clew import --from` takes: Clew's own, and those that installed
    packages add."""
    return tuple(dict.fromkeys([*KINDS, *sorted(plugin.name for plugin in entry_points(group=GROUP))]))


def find_source(kind: str) -> type[Source]:
    """Return the class that reads data of the kind `kind`, such as `llm`. The module of the class is imported only by
    this call. Raises `InvalidInput` if there is no such kind."""
    try:
        found = plugins.find(kind, _BUILT_IN, GROUP, f"the importer {kind!r}")
    except plugins.Unknown as unknown:
        guess = f" Did you mean {unknown.close!r}?" if unknown.close else ""
        raise InvalidInput(f"there is no importer for {kind!r}.{guess} Known here: {unknown.known}.") from None
    if not (isinstance(found, type) and issubclass(found, Source)):
        raise InvalidInput(
            f"the importer {kind!r} is installed, but is not a subclass of clew.compat.importers.Source."
        )
    return found


def open_source(kind: str, path: str | os.PathLike[str]) -> Source:
    """Open the data of another system for reading. `kind` names the system, and `path` is where it keeps its data: a
    file or a folder, in which `~` stands for the home folder.

    Raises `InvalidInput` if there is no such kind, or if the path holds nothing of this kind.
    """
    place = Path(path).expanduser()
    try:
        return find_source(kind).open(place)
    except OSError as error:
        raise InvalidInput(f"{place} cannot be read: {error.strerror or error}.") from error
