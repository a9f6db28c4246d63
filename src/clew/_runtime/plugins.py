"""What a name stands for: something of Clew's own, or what an installed package adds through an entry point."""

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
    """Those of installed packages. What reads them takes long to import, and most programs need none."""
    from importlib import metadata

    return metadata.entry_points(group=group)


class Unknown(Exception):
    """Nothing goes by this name."""

    def __init__(self, known: list[str], close: str | None) -> None:
        super().__init__(", ".join(known))
        self.known = ", ".join(known)
        self.close = close
        """The name that was perhaps meant."""


def find(name: str, built_in: Mapping[str, str], group: str, what: str) -> Any:
    """The object of this name. `Unknown` if there is none; `MissingExtra` if `what` a package adds cannot be imported.

    Built-in ones are written `module:name`, and imported only when they are asked for.
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
