"""The classes of Stirrup, another agent library, for its users: an agent whose interrupted tasks go on where they
stopped.

The names, parameters and lines on the screen are those of Stirrup; the work is done by `clew.Agent`. All steps are on
record as they happen, in a store of Clew instead of the folder `~/.cache/stirrup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.compat.stirrup.agent import (
        DEFAULT_TOOLS,
        Agent,
        ChatCompletionsClient,
        FinishParams,
        Outcome,
        Session,
        default_tools,
    )
    from clew.compat.stirrup.cache import CacheManager, compute_task_hash

__all__ = [
    "DEFAULT_TOOLS",
    "Agent",
    "CacheManager",
    "ChatCompletionsClient",
    "FinishParams",
    "Outcome",
    "Session",
    "compute_task_hash",
    "default_tools",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Agent": "clew.compat.stirrup.agent",
        "CacheManager": "clew.compat.stirrup.cache",
        "ChatCompletionsClient": "clew.compat.stirrup.agent",
        "DEFAULT_TOOLS": "clew.compat.stirrup.agent",
        "FinishParams": "clew.compat.stirrup.agent",
        "Outcome": "clew.compat.stirrup.agent",
        "Session": "clew.compat.stirrup.agent",
        "compute_task_hash": "clew.compat.stirrup.cache",
        "default_tools": "clew.compat.stirrup.agent",
    },
)
