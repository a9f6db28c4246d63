"""What Clew itself says to the model, in a user's place: it is on record like all else, and no prompt of the user's."""

from __future__ import annotations

from clew.messages import Message, User, plain_text, user

__all__ = ["is_note", "is_prompt", "note"]

_MARK = "[clew] "


def note(text: str) -> User:
    """A message from Clew to the model."""
    return user(_MARK + text)


def is_note(message: Message) -> bool:
    return type(message) is User and plain_text(message).startswith(_MARK)


def is_prompt(message: Message) -> bool:
    """Whether a message is a user's own."""
    return type(message) is User and not is_note(message)
