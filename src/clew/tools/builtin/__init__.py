"""The tools that come with Clew. They read and change files in the agent's folder, and run shell commands there."""

from __future__ import annotations

from clew.tools.builtin.defaults import DEFAULT_TOOLS

__all__ = ["DEFAULT_TOOLS"]
