"""Threads: open, lease, append, load, list, fork and rewind, written once over any store."""

from __future__ import annotations

from clew.threads.thread import Durability, Thread

__all__ = ["Durability", "Thread"]
