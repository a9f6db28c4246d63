"""Claude Code: Anthropic's coding agent, driven by its command `claude`."""

from __future__ import annotations

from clew.providers.claude_code.provider import ClaudeCode

__all__ = ["ClaudeCode"]
