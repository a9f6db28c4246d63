"""Clew's threads: open, append, load, list, fork, rewind, copy and maintain them, with the same code for all stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.threads.thread import Durability, Thread
    from clew.threads.views.render import to_json, to_markdown

__all__ = ["Durability", "Thread", "to_json", "to_markdown"]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Durability": "clew.threads.thread",
        "Thread": "clew.threads.thread",
        "to_json": "clew.threads.views.render",
        "to_markdown": "clew.threads.views.render",
    },
)
