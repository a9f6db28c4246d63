"""The turn whose tool calls are not all done: which of its calls have begun, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clew.log.checkpoint import Call, Checkpoint, open_calls
from clew.log.entries import StepIntent, StepOutcome, ToolIntent, ToolOutcome
from clew.messages import Message, ToolResult, tool_calls

__all__ = ["OpenTurn"]


class OpenTurn:
    """What the log says so far about the tool calls of the newest response. Calls are named by their index among the
    calls of that response."""

    __slots__ = ("intents", "message", "open_steps", "results", "steps", "waiting")

    def __init__(self, state: Checkpoint) -> None:
        self.message = state.open_message
        """Index in the history of the response with the calls, or -1 if no turn is open."""
        self.intents = dict(state.intents)
        """For each call that may have started, its idempotency key and the number of its latest attempt."""
        self.results = dict(state.results)
        self.steps: dict[int, dict[str, Any]] = {index: dict(steps) for index, steps in state.steps.items()}
        """For each call with recorded steps (sections of a tool's code), the values of these steps, by key."""
        self.open_steps = dict(state.open_steps)
        """For each call, the keys of the steps that began and have no recorded value."""
        self.waiting = len(tool_calls(state.history[self.message])) - len(state.results) if self.message >= 0 else 0
        """How many calls have no result yet."""

    def begin(self, message: int, calls: int) -> None:
        """Open a turn: the response at the index `message` of the history asks for this many calls."""
        self.message = message
        self.waiting = calls

    def settle(self) -> None:
        """Close the turn, and forget what is known about its calls."""
        self.message = -1
        self.waiting = 0
        if self.intents or self.results or self.steps or self.open_steps:
            for known in (self.intents, self.results, self.steps, self.open_steps):
                known.clear()

    def calls(self, history: Sequence[Message]) -> tuple[Call, ...]:
        """Return the calls of the open turn, in order, with what is known about each; empty if no turn is open."""
        return open_calls(history, self.message, self.intents, self.results, self.steps, self.open_steps)

    def has(self, entry: ToolIntent | ToolOutcome | StepIntent | StepOutcome) -> bool:
        """Return whether this entry is about a call of the open turn."""
        return entry.message == self.message >= 0 <= entry.index < self.waiting + len(self.results)

    def take_intent(self, entry: ToolIntent) -> None:
        if self.has(entry) and entry.index not in self.results:
            self.intents[entry.index] = entry.key, entry.attempt

    def take_result(self, index: int, result: ToolResult) -> None:
        if index not in self.results:
            self.waiting -= 1
        self.results[index] = result
        self.steps.pop(index, None)
        self.open_steps.pop(index, None)

    def take_step_intent(self, entry: StepIntent) -> None:
        if self.has(entry) and entry.index not in self.results:
            self.open_steps[entry.index] = (*self.open_steps.get(entry.index, ()), entry.key)

    def take_step(self, entry: StepOutcome) -> None:
        if self.has(entry) and entry.index not in self.results:
            self.steps.setdefault(entry.index, {})[entry.key] = entry.value
            left = tuple(key for key in self.open_steps.get(entry.index, ()) if key != entry.key)
            self.open_steps[entry.index] = left
