"""Threads that are not to be seen: unfinished copies, and what is kept while a thread is written anew."""

from __future__ import annotations

from clew.checkpointers import Head

__all__ = ["PART", "is_hidden", "is_part"]

PART = "clew:part"
"""The tag of a thread that is still being written, and not to be shown before it is whole."""
_OWN = "clew:"


def is_part(head: Head) -> bool:
    """Whether this thread is still being written."""
    return PART in head.tags


def is_hidden(head: Head) -> bool:
    """Whether this thread is left out of listings: it is a part, or has a name that Clew gave it."""
    return is_part(head) or head.thread_id.startswith(_OWN)
