"""The built-in agent, which asks models itself. This package holds its loop of turns, the journal that records them,
and its runs, sessions and events."""

from __future__ import annotations

from clew.agent.agent import Agent
from clew.agent.events import (
    CheckpointSaved,
    Compacted,
    Event,
    Question,
    Retrying,
    RunStarted,
    SnapshotSaved,
    TextDelta,
    ThinkingDelta,
    ToolFinished,
    ToolInDoubt,
    ToolReplayed,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    Unwound,
    Waiting,
)
from clew.agent.run import Run, RunResult
from clew.agent.session import Session
from clew.agent.settings import Budget
from clew.agent.trajectory import Exchange, Trajectory

__all__ = [
    "Agent",
    "Budget",
    "CheckpointSaved",
    "Compacted",
    "Event",
    "Exchange",
    "Question",
    "Retrying",
    "Run",
    "RunResult",
    "RunStarted",
    "Session",
    "SnapshotSaved",
    "TextDelta",
    "ThinkingDelta",
    "ToolFinished",
    "ToolInDoubt",
    "ToolReplayed",
    "ToolStarted",
    "Trajectory",
    "TurnFinished",
    "TurnStarted",
    "Unwound",
    "Waiting",
]
