"""From the state a log adds up to, to the head that tells of it."""

from __future__ import annotations

import re

import msgspec

from clew.checkpointers import Head
from clew.log import Checkpoint, Fold

__all__ = ["PART", "head_of", "is_child", "is_hidden", "is_part"]


def head_of(state: Fold | Checkpoint, base: Head, *, encrypted: bool) -> Head:
    """This head with what the log adds up to. No text of the conversation is in the head of an encrypted thread."""
    return msgspec.structs.replace(
        base,
        status=state.status,
        agent=state.agent,
        title="" if encrypted else state.title,
        model=state.model,
        turns=state.turns,
        input_tokens=state.usage.input_tokens,
        output_tokens=state.usage.output_tokens,
        cost_usd=state.cost_usd,
        parent=state.parent,
        tags=state.tags,
    )


PART = "clew:part"
"""The tag of a thread that is still being written, and not to be shown before it is whole."""
_OWN = "clew:"


def is_part(head: Head) -> bool:
    """Whether this thread is still being written."""
    return PART in head.tags


def is_hidden(head: Head) -> bool:
    """Whether this thread is left out of listings: it is a part, or has a name that Clew gave it."""
    return is_part(head) or head.thread_id.startswith(_OWN)


_CHILD = re.compile(r"/[A-Za-z0-9_-]{1,64}:[0-9a-f]{1,16}")
"""How the name of a child goes on after that of its parent: the agent's name, and the key of the call."""


def is_child(head: Head) -> bool:
    """Whether a thread is that of a child, and no fork."""
    if head.parent is None:
        return False
    return _CHILD.fullmatch(head.thread_id.removeprefix(head.parent[0])) is not None
