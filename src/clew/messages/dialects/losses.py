"""What a dialect cannot say, told in plain words and with its place in the conversation."""

from __future__ import annotations

import msgspec

__all__ = ["Loss"]

At = tuple[int, int | None]
"""Where a block stands: the index of its message, and its own in that message, or None for the message as a whole."""


class Loss(msgspec.Struct, frozen=True, order=True):
    """One thing that does not come back as it was from a dialect. It names places and kinds, never content."""

    message: int
    """The index of the message in the conversation."""
    block: int | None
    """The index of the block in the message, or None if it is about the message as a whole."""
    what: str
    why: str


class Notes:
    """Where translators write down what they could not say. They always do, so that both faces take one path."""

    def __init__(self) -> None:
        self._losses: dict[Loss, None] = {}

    def add(self, at: At, what: str, why: str) -> None:
        self._losses[Loss(at[0], at[1], what, why)] = None

    def losses(self) -> list[Loss]:
        return sorted(self._losses, key=lambda loss: (loss.message, -1 if loss.block is None else loss.block))
