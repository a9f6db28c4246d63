"""The ways a tool call can end without a value: an error for the model, a question to a person, or an unknown outcome."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

from clew.errors import ClewError

__all__ = ["NOT_DONE", "BadArguments", "Interrupted", "NotDone", "OutcomeUnknown", "Stopped", "ToolError"]


class ToolError(ClewError):
    """Raise this in a tool to tell the model what went wrong. The model gets exactly this message.

    Other exceptions reach the model too, with the name of their type before the message. A `ToolError` is deliberate,
    so the call is never retried.
    """


class BadArguments(ToolError):
    """The model's arguments do not fit the tool. The message says which, what was expected and what was given."""


class Interrupted(BaseException):
    """A tool asked a person, and no answer is on record yet. Raised for the agent; tools do not raise it.

    Not an `Exception`, so that a tool that catches all exceptions does not swallow its own question.
    """

    def __init__(self, question: str, key: str, *, kind: str = "question", arguments: Any = None) -> None:
        super().__init__(question)
        self.question = question
        self.key = key
        """The key of the step under which the answer is recorded before the tool runs again."""
        self.kind = kind
        self.arguments = arguments
        """The subject of the question if it is not the call itself: a call that another agent is about to make."""


class OutcomeUnknown(BaseException):
    """The call was given up while its body may still run. It stays in doubt: neither a result nor an error is recorded.

    Not an `Exception`, for the same reason as `Interrupted`.
    """

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"{tool}: {reason}")
        self.tool = tool
        self.reason = reason


class Stopped(BaseException):
    """The run cannot go on: its record or its lease is out of reach, or something a child agent needs is. The call has
    no outcome and stays in doubt for a resume. Raised for the agent; tools do not raise it.

    Not an `Exception`, for the same reason as `Interrupted`.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class NotDone(Enum):
    """The type of `NOT_DONE`."""

    NOT_DONE = "not done"

    def __repr__(self) -> str:
        return self.name


NOT_DONE: Final[Literal[NotDone.NOT_DONE]] = NotDone.NOT_DONE
"""Returned by `reconcile` when the effect certainly did not happen, so that the call can be made now."""
