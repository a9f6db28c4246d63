"""The built-in agent: loop, journal, runs."""

from __future__ import annotations

from clew.agent.agent import Agent
from clew.agent.events import (
    Event,
    Question,
    Retrying,
    SnapshotSaved,
    TextDelta,
    ThinkingDelta,
    ToolFinished,
    ToolInDoubt,
    ToolReplayed,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    Waiting,
)
from clew.agent.runs import Run, RunResult
from clew.agent.settings import Budget

__all__ = [
    "Agent",
    "Budget",
    "Event",
    "Question",
    "Retrying",
    "Run",
    "RunResult",
    "SnapshotSaved",
    "TextDelta",
    "ThinkingDelta",
    "ToolFinished",
    "ToolInDoubt",
    "ToolReplayed",
    "ToolStarted",
    "TurnFinished",
    "TurnStarted",
    "Waiting",
]
