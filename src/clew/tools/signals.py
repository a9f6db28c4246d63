"""The exceptions with which a tool call ends without a value: an error for the model, a question to a person, an
unknown outcome, or a problem that stops the run. Also `NOT_DONE`, with which a function that checks an earlier call
says that the call did not happen."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Literal

from clew.errors import ClewError

__all__ = ["NOT_DONE", "BadArguments", "Interrupted", "NotDone", "OutcomeUnknown", "Stopped", "ToolError"]


class ToolError(ClewError):
    """Raise this in a tool to tell the model what went wrong. The model gets exactly this message.

    Other exceptions reach the model too, with the name of their type before the message. They may be retried, as the
    tool's `retries` says; a `ToolError` never is.
    """


class BadArguments(ToolError):
    """The model's arguments do not fit the tool. The message says, for each problem, which argument it is, what was
    expected and what was given."""


class Interrupted(BaseException):
    """A tool has asked a person, and no answer is on record yet. `ctx.interrupt` raises this to end the tool; tools do
    not raise it themselves.

    It is not an `Exception`, so that a tool that catches all exceptions does not catch this one.
    """

    def __init__(self, question: str, key: str, *, kind: str = "question", arguments: Any = None) -> None:
        super().__init__(question)
        self.question = question
        self.key = key
        """The key of the recorded step that will hold the answer when the tool runs again."""
        self.kind = kind
        self.arguments = arguments
        """The arguments of a call, shown to the person with the question. They are set only if they are not those of
        the call that asks: a sub-agent may ask about a call that it is about to make."""


class OutcomeUnknown(BaseException):
    """The call was given up while the tool's function may still be running. Neither a result nor an error is recorded,
    so the call stays in doubt: it was begun and has no recorded outcome.

    It is not an `Exception`, so that an `except Exception` in a tool does not catch it.
    """

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"{tool}: {reason}")
        self.tool = tool
        self.reason = reason


class Stopped(BaseException):
    """The run cannot go on: the store cannot be reached, the lease is lost, or a sub-agent met such a problem. The call
    has no recorded outcome; what becomes of it is decided when the thread is resumed. Raised by Clew; tools do not
    raise it themselves.

    It is not an `Exception`, so that an `except Exception` in a tool does not catch it.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class NotDone(Enum):
    """The type of `NOT_DONE`. A `reconcile` function is asked about a call or step that was begun and has no recorded
    outcome. It returns `NOT_DONE` to say that the call or step certainly did not happen."""

    NOT_DONE = "not done"

    def __repr__(self) -> str:
        return self.name


NOT_DONE: Final[Literal[NotDone.NOT_DONE]] = NotDone.NOT_DONE
"""What a `reconcile` function returns if the effect certainly did not happen, so that the call or step can be run now.
"""
