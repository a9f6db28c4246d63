"""What Clew itself says to the model, in a user's place: it is on record like all else, and no prompt of the user's."""

from __future__ import annotations

from clew.log import Checkpoint
from clew.messages import Message, User, plain_text, user

__all__ = ["NOTE", "is_note", "is_prompt", "note", "note_waiting"]

NOTE = "clew:note"
"""The thread's value that holds what the model is to be told before it is asked again."""
_MARK = "[clew] "


def note(text: str) -> User:
    """A message from Clew to the model."""
    return user(_MARK + text)


def note_waiting(state: Checkpoint) -> str:
    """What the model is to be told before it is asked again; empty if nothing. Calls that are open are settled first."""
    return str(state.state.get(NOTE) or "")


def is_note(message: Message) -> bool:
    return type(message) is User and plain_text(message).startswith(_MARK)


def is_prompt(message: Message) -> bool:
    """Whether a message is a user's own."""
    return type(message) is User and not is_note(message)
