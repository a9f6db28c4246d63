"""Lets Claude Code, Codex and opencode work as agents of Clew. Their work is recorded in threads, can be continued on
any machine, and can be moved from one program to another."""

from __future__ import annotations

from clew.agent.handles import Handle, read_handle, write_handle
from clew.agent.trajectory import Exchange, Trajectory
from clew.providers.agent import ProviderAgent
from clew.providers.base import Conversation, Health, NativeSession, Permissions, Place, Program, Provider
from clew.providers.discovery import Discovered, Problem, discover
from clew.providers.native_sync import adopt
from clew.providers.registry import PROVIDERS, find_provider
from clew.providers.session import ProviderSession
from clew.providers.status import check_providers
from clew.providers.translate.move import Translated, translate

__all__ = [
    "PROVIDERS",
    "Conversation",
    "Discovered",
    "Exchange",
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
    "adopt",
    "check_providers",
    "discover",
    "find_provider",
    "read_handle",
    "translate",
    "write_handle",
]
