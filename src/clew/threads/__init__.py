"""Threads: open, lease, append, load, list, fork, rewind, keep and move them, written once over any store."""

from __future__ import annotations

from clew.threads.thread import Durability, Thread
from clew.threads.views.render import to_json, to_markdown

__all__ = ["Durability", "Thread", "to_json", "to_markdown"]
