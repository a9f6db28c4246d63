"""opencode: an open-source coding agent, driven by its command `opencode`."""

from __future__ import annotations

from clew.providers.opencode.provider import OpenCode

__all__ = ["OpenCode"]
