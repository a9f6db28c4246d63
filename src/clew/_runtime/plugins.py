"""Finds an object by its name: one of Clew's own, or one that an installed package adds through an entry point."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from clew.errors import MissingExtra

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

__all__ = ["Unknown", "find"]


def entry_points(*, group: str) -> EntryPoints:
    """Return the entry points that installed packages declare for this group."""
    from importlib import metadata  # here because it takes long to import and most programs need no plug-in

    return metadata.entry_points(group=group)


class Unknown(Exception):
    """Raised if neither Clew nor an installed package has an object with the name asked for. It is made with the list
    of the names that exist; its attribute `known` has them as one text, separated by commas."""

    def __init__(self, known: list[str], close: str | None) -> None:
        super().__init__(", ".join(known))
        self.known = ", ".join(known)
        self.close = close
        """The known name that is most like the one asked for; None if no name is alike."""


def find(name: str, built_in: Mapping[str, str], group: str, what: str) -> Any:
    """Import and return the object with this name: a built-in one, else one from the entry points of `group`.

    `built_in` maps the names of Clew's own objects to `module:attribute`. Raises `Unknown` if there is no such name.
    Raises `MissingExtra` if the object of an installed package cannot be imported. `what` describes the object in that
    error, for example "the provider 'x'".
    """
    if name in built_in:
        module, _, wanted = built_in[name].partition(":")
        return getattr(import_module(module), wanted)
    plugins = {plugin.name: plugin for plugin in entry_points(group=group)}
    if name not in plugins:
        known = sorted({*built_in, *plugins})
        close = difflib.get_close_matches(name, known, n=1)
        raise Unknown(known, close[0] if close else None)
    try:
        return plugins[name].load()
    except ImportError as error:
        raise MissingExtra(what, name) from error
