"""`Loss` and `Notes`: records of what a dialect (the format of a vendor's API) cannot express of a conversation. Each
`Loss` says which message and which block it is about, and a `Notes` collects them."""

from __future__ import annotations

import msgspec

__all__ = ["At", "Loss", "Notes"]

At = tuple[int, int | None]
"""The place of a block in a conversation: the index of its message, and its own index in that message.

The second is None if the whole message is meant.
"""


class Loss(msgspec.Struct, frozen=True, order=True):
    """One thing that is missing or changed after a conversation was written in a dialect (the format of a vendor's API)
    and read back.

    It says where the thing was and of which kind, but never shows content of the conversation.
    """

    message: int
    """The index of the message in the conversation."""
    block: int | None
    """The index of the block in the message, or None if the loss concerns the whole message."""
    what: str
    """What is lost or changed, in a few words."""
    why: str
    """Why the dialect cannot keep it, or what is sent instead, in a few words."""


class Notes:
    """Collects losses (what is missing or changed) while a conversation is written in a dialect, the format of a
    vendor's API.

    The public function `losses` returns what was collected. `to_dialect` writes the conversation in the same way, and
    ignores what was collected.
    """

    def __init__(self) -> None:
        self._losses: dict[Loss, None] = {}

    def add(self, at: At, what: str, why: str) -> None:
        self._losses[Loss(at[0], at[1], what, why)] = None

    def losses(self) -> list[Loss]:
        return sorted(self._losses, key=lambda loss: (loss.message, -1 if loss.block is None else loss.block))
