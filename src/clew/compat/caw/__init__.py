"""The classes of caw, a library that wraps coding agents, under the names that its users know: change `from caw import
Agent` to `from clew.compat.caw import Agent`. All calls block until they are done, as those of caw do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.compat.caw.agent import Agent
    from clew.compat.caw.session import Session
    from clew.compat.caw.trajectory import TextBlock, ThinkingBlock, ToolUse, Trajectory, Turn, UsageStats

__all__ = ["Agent", "Session", "TextBlock", "ThinkingBlock", "ToolUse", "Trajectory", "Turn", "UsageStats"]

_TRAJECTORY = "clew.compat.caw.trajectory"

__getattr__, __dir__ = exports(
    __name__,
    {
        "Agent": "clew.compat.caw.agent",
        "Session": "clew.compat.caw.session",
        "TextBlock": _TRAJECTORY,
        "ThinkingBlock": _TRAJECTORY,
        "ToolUse": _TRAJECTORY,
        "Trajectory": _TRAJECTORY,
        "Turn": _TRAJECTORY,
        "UsageStats": _TRAJECTORY,
    },
)
