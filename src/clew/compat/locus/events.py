"""The events of a run, with the names and the fields that they have in Locus, another agent library."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from clew.compat.locus.state import ToolCall

__all__ = [
    "InterruptEvent",
    "LocusEvent",
    "TerminateEvent",
    "ThinkEvent",
    "ToolCompleteEvent",
    "ToolStartEvent",
]


class LocusEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of all events that `agent.run(…)` yields to its reader. An event says what the agent did. The classes
    of events are named as in Locus, another agent library."""

    event_type: ClassVar[str]
    timestamp: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))


class ThinkEvent(LocusEvent, frozen=True, kw_only=True):
    """Says that the model has responded. The response is on record already, or is written together with the note that
    its tool calls are about to run."""

    event_type = "think"
    iteration: int
    """The number of the response in the thread, from 1."""
    reasoning: str | None = None
    """What the model said."""
    tool_calls: list[ToolCall] = []


class ToolStartEvent(LocusEvent, frozen=True, kw_only=True):
    """Says that a tool is about to run. If the tool can have effects, it is on record already that the call may have
    begun."""

    event_type = "tool_start"
    tool_name: str
    tool_call_id: str
    arguments: Any


class ToolCompleteEvent(LocusEvent, frozen=True, kw_only=True):
    """Says that a tool call has ended. Its result is on record."""

    event_type = "tool_complete"
    tool_name: str
    tool_call_id: str
    result: str | None = None
    error: str | None = None
    duration_ms: float | None = None
    """None if the tool did not run now: its result was on record from an earlier run."""

    @property
    def success(self) -> bool:
        return self.error is None


class InterruptEvent(LocusEvent, frozen=True, kw_only=True):
    """Says that the run has stopped to ask a person. Any process can answer: `agent.resume(response, thread_id=…)`."""

    event_type = "interrupt"
    question: str
    options: list[str] | None = None
    interrupt_id: str
    metadata: dict[str, Any] = {}


class TerminateEvent(LocusEvent, frozen=True, kw_only=True):
    """Says that the run has ended. Everything that the run did is on record."""

    event_type = "terminate"
    reason: str
    """`complete`, `max_iterations`, `token_budget`, `cost_budget`, `time_budget`, `interrupted` or `error`."""
    iterations_used: int
    """How many responses of the model the thread has."""
    final_confidence: float = 0.0
    """Always 0: Clew does not rate answers."""
    total_tool_calls: int = 0
    """How many tool calls this run made."""
    final_message: str | None = None
    usage: dict[str, int] | None = None
    cost_usd: float | None = None
    """What the run cost; None if a price is not known."""
    error: str | None = None
