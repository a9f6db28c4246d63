"""How threads descend from one another: by a fork, or by an agent that calls another as a tool."""

from __future__ import annotations

import re

from clew.checkpointers import Head

__all__ = ["is_child"]

_CHILD = re.compile(r"/[A-Za-z0-9_-]{1,64}:[0-9a-f]{1,16}")
"""How the name of a child goes on after that of its parent: the agent's name, and the key of the call."""


def is_child(head: Head) -> bool:
    """Whether a thread is that of a child, and no fork."""
    if head.parent is None:
        return False
    return _CHILD.fullmatch(head.thread_id.removeprefix(head.parent[0])) is not None
