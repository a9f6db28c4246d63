"""`DEFAULT_TOOLS`: all tools that come with Clew."""

from __future__ import annotations

from clew.tools.builtin.files import edit_file, list_files, read_file, write_file
from clew.tools.builtin.shell import run_command
from clew.tools.decorator import AnyTool

__all__ = ["DEFAULT_TOOLS"]

DEFAULT_TOOLS: tuple[AnyTool, ...] = (read_file, write_file, edit_file, list_files, run_command)
"""The tools for files and commands of the workspace: `Agent(tools=[*DEFAULT_TOOLS, …])`."""
