"""Records of what a dialect cannot express, with the place in the conversation."""

from __future__ import annotations

import msgspec

__all__ = ["At", "Loss", "Notes"]

At = tuple[int, int | None]
"""The place of a block: its message's index and its own index in that message, or None for the whole message."""


class Loss(msgspec.Struct, frozen=True, order=True):
    """Something in a conversation that a dialect does not give back unchanged. Names places and kinds, never content."""

    message: int
    """The index of the message in the conversation."""
    block: int | None
    """The index of the block in the message, or None if the loss concerns the whole message."""
    what: str
    """The thing that is lost or changed."""
    why: str
    """Why the dialect cannot keep it, or what is sent instead."""


class Notes:
    """Collects the losses while a conversation is translated.

    `to_dialect` collects them too and drops them, so that it and `losses` run the same code.
    """

    def __init__(self) -> None:
        self._losses: dict[Loss, None] = {}

    def add(self, at: At, what: str, why: str) -> None:
        self._losses[Loss(at[0], at[1], what, why)] = None

    def losses(self) -> list[Loss]:
        return sorted(self._losses, key=lambda loss: (loss.message, -1 if loss.block is None else loss.block))
