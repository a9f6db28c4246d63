"""The tools that come with Clew: files and commands of the workspace."""

from __future__ import annotations

from clew.tools.builtin.defaults import DEFAULT_TOOLS

__all__ = ["DEFAULT_TOOLS"]
