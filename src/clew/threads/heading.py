"""From the state a log adds up to, to the head that tells of it."""

from __future__ import annotations

import msgspec

from clew.checkpointers import Head
from clew.log import Checkpoint, Fold

__all__ = ["head_of"]


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
