"""Claude Code, Codex, opencode: driven, captured, restored on any machine, and translated into each other."""

from __future__ import annotations

from clew.agent.handles import Handle, read_handle, write_handle
from clew.agent.trajectory import Trajectory, Turn
from clew.providers.adopting import adopt
from clew.providers.agent import ProviderAgent
from clew.providers.base import Conversation, Health, NativeSession, Permissions, Place, Program, Provider
from clew.providers.checking import check_providers
from clew.providers.discovering import Discovered, Problem, discover
from clew.providers.registry import PROVIDERS, find_provider
from clew.providers.session import ProviderSession
from clew.providers.translating import Translated, translate

__all__ = [
    "PROVIDERS",
    "Conversation",
    "Discovered",
    "Handle",
    "Health",
    "NativeSession",
    "Permissions",
    "Place",
    "Problem",
    "Program",
    "Provider",
    "ProviderAgent",
    "ProviderSession",
    "Trajectory",
    "Translated",
    "Turn",
    "adopt",
    "check_providers",
    "discover",
    "find_provider",
    "read_handle",
    "translate",
    "write_handle",
]
