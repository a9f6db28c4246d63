"""What a call of a tool can come to besides a value: a message for the model, a question, or nobody knows."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

from clew.errors import ClewError

__all__ = ["NOT_DONE", "BadArguments", "Interrupted", "NotDone", "OutcomeUnknown", "Stopped", "ToolError"]


class ToolError(ClewError):
    """Raise it in a tool to tell the model what went wrong: it is given these words and nothing else.

    Any other exception reaches the model too, with the name of its type before its message. A `ToolError` is meant, so it
    is never retried.
    """


class BadArguments(ToolError):
    """The model's arguments do not fit the tool. The message says which, what was expected and what was given."""


class Interrupted(BaseException):
    """A tool asked a person, and no answer is on record yet. For the agent, not for tools.

    Not an `Exception`: a tool that catches all errors of its own must not swallow its question.
    """

    def __init__(self, question: str, key: str, *, kind: str = "question", arguments: Any = None) -> None:
        super().__init__(question)
        self.question = question
        self.key = key
        """Where the answer is to be recorded, as the outcome of a step, before the tool is run again."""
        self.kind = kind
        self.arguments = arguments
        """What the question is about, where that is not the call itself: a call that another agent is about to make."""


class OutcomeUnknown(BaseException):
    """The call was given up while its body may go on, so it is left in doubt: neither a result nor an error is recorded.

    Not an `Exception`, for the same reason as `Interrupted`.
    """

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"{tool}: {reason}")
        self.tool = tool
        self.reason = reason


class Stopped(BaseException):
    """The run itself cannot go on: its record or its lease is out of reach, or what a child agent needs is. That is no
    outcome of the call, which stays in doubt for a resume. For the agent, not for tools.

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
"""What `reconcile` returns when it is certain that the effect did not happen, so that the call may be made now."""
