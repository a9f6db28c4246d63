"""The built-in agent, which asks models itself. This package holds its loop of turns, the journal that records them,
and its runs, sessions and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
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

__getattr__, __dir__ = exports(
    __name__,
    {
        "Agent": "clew.agent.agent",
        "Budget": "clew.agent.settings",
        "CheckpointSaved": "clew.agent.events",
        "Compacted": "clew.agent.events",
        "Event": "clew.agent.events",
        "Exchange": "clew.agent.trajectory",
        "Question": "clew.agent.events",
        "Retrying": "clew.agent.events",
        "Run": "clew.agent.run",
        "RunResult": "clew.agent.run",
        "RunStarted": "clew.agent.events",
        "Session": "clew.agent.session",
        "SnapshotSaved": "clew.agent.events",
        "TextDelta": "clew.agent.events",
        "ThinkingDelta": "clew.agent.events",
        "ToolFinished": "clew.agent.events",
        "ToolInDoubt": "clew.agent.events",
        "ToolReplayed": "clew.agent.events",
        "ToolStarted": "clew.agent.events",
        "Trajectory": "clew.agent.trajectory",
        "TurnFinished": "clew.agent.events",
        "TurnStarted": "clew.agent.events",
        "Unwound": "clew.agent.events",
        "Waiting": "clew.agent.events",
    },
)
