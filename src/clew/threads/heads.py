"""Make a head from the state that a log folds to, and read from a head what kind of thread it belongs to."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

import msgspec

from clew.checkpointers import Head
from clew.checkpointers.heads import Status
from clew.log import Checkpoint, Fold

__all__ = ["PART", "head_of", "is_child", "is_hidden", "is_part", "new_head", "without_lease"]


def head_of(state: Fold | Checkpoint, base: Head, *, encrypted: bool) -> Head:
    """Return `base` with all fields that follow from the state. An encrypted thread's head gets no title."""
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


def new_head(thread_id: str, status: Status = "interrupted", created_at: datetime | None = None) -> Head:
    """Return the head of a log without any frames, with a new random log id."""
    now = datetime.now(UTC)
    return Head(
        thread_id=thread_id,
        frames=0,
        log_id=secrets.token_hex(16),
        status=status,
        created_at=created_at or now,
        updated_at=now,
    )


def without_lease(head: Head) -> Head:
    """Return the head for a copy of the thread: without its lease, and interrupted if the thread is running."""
    return msgspec.structs.replace(head, lease=None, status="interrupted" if head.status == "running" else head.status)


PART = "clew:part"
"""Tag of a thread that is still being written. Such a thread is hidden until it is complete."""
_OWN = "clew:"


def is_part(head: Head) -> bool:
    """Return whether this thread is still being written."""
    return PART in head.tags


def is_hidden(head: Head) -> bool:
    """Return whether listings leave this thread out: it is incomplete, or Clew made it for its own use."""
    return is_part(head) or head.thread_id.startswith(_OWN)


_CHILD = re.compile(r"/[A-Za-z0-9_-]{1,64}:[0-9a-f]{1,16}")
"""What follows the parent's id in the id of a sub-agent's thread: the agent's name and the key of the call."""


def is_child(head: Head) -> bool:
    """Return whether this thread belongs to a sub-agent. A fork has a parent too, but is not a child."""
    if head.parent is None:
        return False
    return _CHILD.fullmatch(head.thread_id.removeprefix(head.parent[0])) is not None
