"""Codex: OpenAI's coding agent, driven by its command `codex`."""

from __future__ import annotations

from clew.providers.codex.provider import Codex

__all__ = ["Codex"]
