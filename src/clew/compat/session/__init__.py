"""`Checkpoint`, the state of an agent's run, and `Store`, which saves it, with the names that they have in the Go
package `session`. A `Store` keeps runs as threads of Clew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.compat.session.checkpoint import Checkpoint
    from clew.compat.session.store import Store

__all__ = ["Checkpoint", "Store"]

__getattr__, __dir__ = exports(
    __name__,
    {"Checkpoint": "clew.compat.session.checkpoint", "Store": "clew.compat.session.store"},
)
