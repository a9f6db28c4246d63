"""The checkpointers of Locus, another agent library, by their names there. Each keeps its data in a store of Clew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.compat.locus.memory.checkpointer import BaseCheckpointer, CheckpointerCapabilities

__all__ = ["BaseCheckpointer", "CheckpointerCapabilities"]

__getattr__, __dir__ = exports(
    __name__,
    {
        "BaseCheckpointer": "clew.compat.locus.memory.checkpointer",
        "CheckpointerCapabilities": "clew.compat.locus.memory.checkpointer",
    },
)
