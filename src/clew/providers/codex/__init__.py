"""Codex, OpenAI's coding agent: `codex exec`, and its rollouts."""

from __future__ import annotations

from clew.providers.codex.provider import Codex

__all__ = ["Codex"]
