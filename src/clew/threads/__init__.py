"""Clew's threads: open, append, load, list, fork, rewind, copy and maintain them, with the same code for all stores."""

from __future__ import annotations

from clew.threads.thread import Durability, Thread
from clew.threads.views.render import to_json, to_markdown

__all__ = ["Durability", "Thread", "to_json", "to_markdown"]
