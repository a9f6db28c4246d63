"""Clew makes the work of AI agents durable. Each step is recorded in a store, for example in a database or in files. So
an agent that was stopped in any way goes on exactly where it was.

This package has the public names, such as `Agent`, `Thread` and `tool`; each is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.agent import Agent, Budget, Run, RunResult, Session
    from clew.checkpointers import open_checkpointer
    from clew.log import Checkpoint
    from clew.threads import Thread
    from clew.tools import ToolContext, ToolError, tool
    from clew.workspace import SnapshotRef, Workspace

__version__ = "0.1.0"

_HOMES = {
    "Agent": "clew.agent",
    "Budget": "clew.agent",
    "Checkpoint": "clew.log",
    "Run": "clew.agent",
    "RunResult": "clew.agent",
    "Session": "clew.agent",
    "SnapshotRef": "clew.workspace",
    "Thread": "clew.threads",
    "ToolContext": "clew.tools",
    "ToolError": "clew.tools",
    "Workspace": "clew.workspace",
    "open_checkpointer": "clew.checkpointers",
    "tool": "clew.tools",
}

__all__ = [
    "Agent",
    "Budget",
    "Checkpoint",
    "Run",
    "RunResult",
    "Session",
    "SnapshotRef",
    "Thread",
    "ToolContext",
    "ToolError",
    "Workspace",
    "__version__",
    "open_checkpointer",
    "tool",
]

__getattr__, __dir__ = exports(__name__, _HOMES)
