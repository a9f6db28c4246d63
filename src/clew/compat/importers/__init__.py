"""Import conversations that other systems have stored, each as a thread: `clew import --from KIND PATH`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.compat.importers.base import Conversation, Source
    from clew.compat.importers.registry import KINDS, find_source, open_source, source_kinds
    from clew.compat.importers.transfer import Imported, Outcome, import_all

__all__ = [
    "KINDS",
    "Conversation",
    "Imported",
    "Outcome",
    "Source",
    "find_source",
    "import_all",
    "open_source",
    "source_kinds",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "KINDS": "clew.compat.importers.registry",
        "Conversation": "clew.compat.importers.base",
        "Imported": "clew.compat.importers.transfer",
        "Outcome": "clew.compat.importers.transfer",
        "Source": "clew.compat.importers.base",
        "find_source": "clew.compat.importers.registry",
        "import_all": "clew.compat.importers.transfer",
        "open_source": "clew.compat.importers.registry",
        "source_kinds": "clew.compat.importers.registry",
    },
)
