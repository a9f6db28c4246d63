"""opencode, whose conversations are rows of a database."""

from __future__ import annotations

from clew.providers.opencode.provider import OpenCode

__all__ = ["OpenCode"]
