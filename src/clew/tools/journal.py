"""Where a tool's steps are recorded. The agent gives one that writes to the thread; tests and plain calls use memory."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

__all__ = ["Journal", "MemoryJournal", "Missing", "answer_key"]


class Missing(Enum):
    """Why there is no outcome."""

    NOT_RECORDED = "not recorded"
    """The step was never begun."""
    IN_DOUBT = "in doubt"
    """The step was begun in an earlier attempt, and what it came to is not on record."""


class Journal(Protocol):
    """The record of one call's steps."""

    async def step_intent(self, key: str) -> None:
        """A step is about to run; durable when this returns."""

    async def step_outcome(self, key: str, value: Any) -> None:
        """What the step came to, a JSON-like value; durable when this returns."""

    def recorded(self, key: str) -> Any:
        """The outcome on record, or a `Missing`. Reads what was loaded or written; called on the event loop."""


def answer_key(number: int) -> str:
    """The key under which the answer to a call's question is on record: the first it asks has the number 0."""
    return f"clew:answer:{number}"


class MemoryJournal:
    """A journal that lasts as long as the object: for the tests of a tool, and for calls that nothing is kept of."""

    def __init__(self, answers: Sequence[Any] = ()) -> None:
        """`answers` are those to the tool's questions, in order."""
        self.outcomes: dict[str, Any] = {answer_key(number): answer for number, answer in enumerate(answers)}
        self.intents: list[str] = []

    async def step_intent(self, key: str) -> None:
        self.intents.append(key)

    async def step_outcome(self, key: str, value: Any) -> None:
        self.outcomes[key] = value

    def recorded(self, key: str) -> Any:
        if key in self.outcomes:
            return self.outcomes[key]
        return Missing.IN_DOUBT if key in self.intents else Missing.NOT_RECORDED
