"""The classes of Locus, another agent library, under their names there: write `from clew.compat.locus import Agent` in
place of `from locus import Agent`.

The checkpointers are in `clew.compat.locus.memory.backends`, a module that has the same name as in Locus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.compat.locus.agent import Agent
    from clew.compat.locus.config import AgentConfig
    from clew.compat.locus.events import (
        InterruptEvent,
        LocusEvent,
        TerminateEvent,
        ThinkEvent,
        ToolCompleteEvent,
        ToolStartEvent,
    )
    from clew.compat.locus.state import AgentState, Message, Role, ToolCall, ToolExecution, ToolResult
    from clew.compat.locus.tools import tool
    from clew.tools import ToolContext

_HOMES = {
    "Agent": "clew.compat.locus.agent",
    "AgentConfig": "clew.compat.locus.config",
    "AgentState": "clew.compat.locus.state",
    "InterruptEvent": "clew.compat.locus.events",
    "LocusEvent": "clew.compat.locus.events",
    "Message": "clew.compat.locus.state",
    "Role": "clew.compat.locus.state",
    "TerminateEvent": "clew.compat.locus.events",
    "ThinkEvent": "clew.compat.locus.events",
    "ToolCall": "clew.compat.locus.state",
    "ToolCompleteEvent": "clew.compat.locus.events",
    "ToolContext": "clew.tools",
    "ToolExecution": "clew.compat.locus.state",
    "ToolResult": "clew.compat.locus.state",
    "ToolStartEvent": "clew.compat.locus.events",
    "tool": "clew.compat.locus.tools",
}

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentState",
    "InterruptEvent",
    "LocusEvent",
    "Message",
    "Role",
    "TerminateEvent",
    "ThinkEvent",
    "ToolCall",
    "ToolCompleteEvent",
    "ToolContext",
    "ToolExecution",
    "ToolResult",
    "ToolStartEvent",
    "tool",
]

__getattr__, __dir__ = exports(__name__, _HOMES)
