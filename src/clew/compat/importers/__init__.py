"""Brings conversations that other systems have stored into threads: `clew import --from KIND PATH`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.compat.importers.base import Conversation, Source

__all__ = ["Conversation", "Source"]

__getattr__, __dir__ = exports(
    __name__,
    {"Conversation": "clew.compat.importers.base", "Source": "clew.compat.importers.base"},
)
