"""The class `GenericAgent` of the Cortex workflows (another system), an agent that remembers its last session, and the
classes that it uses, under their names there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
    from clew.compat.cortex.agent import GenericAgent, check_session_resumption, get_claude_session_id
    from clew.compat.cortex.config import AgentConfig
    from clew.compat.cortex.response import AgentResponse, ResumptionReport

__all__ = [
    "AgentConfig",
    "AgentResponse",
    "GenericAgent",
    "ResumptionReport",
    "check_session_resumption",
    "get_claude_session_id",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "AgentConfig": "clew.compat.cortex.config",
        "AgentResponse": "clew.compat.cortex.response",
        "GenericAgent": "clew.compat.cortex.agent",
        "ResumptionReport": "clew.compat.cortex.response",
        "check_session_resumption": "clew.compat.cortex.agent",
        "get_claude_session_id": "clew.compat.cortex.agent",
    },
)
