"""Tools: functions that a model may call. A tool declares what may happen if it runs again after a crash."""

from __future__ import annotations

from clew.tools.builtin.defaults import DEFAULT_TOOLS
from clew.tools.builtin.files import edit_file, list_files, read_file, write_file
from clew.tools.builtin.shell import run_command
from clew.tools.call import ask_reconcile, call_tool, needs_approval, unknown_tool
from clew.tools.context import BlockingSteps, Journal, MemoryJournal, Missing, State, ToolContext, answer_key
from clew.tools.decorator import AnyTool, Effect, InDoubt, Tool, as_tool, tool
from clew.tools.mcp import MCPTools, mcp_tools
from clew.tools.signals import NOT_DONE, BadArguments, Interrupted, NotDone, OutcomeUnknown, Stopped, ToolError

__all__ = [
    "DEFAULT_TOOLS",
    "NOT_DONE",
    "AnyTool",
    "BadArguments",
    "BlockingSteps",
    "Effect",
    "InDoubt",
    "Interrupted",
    "Journal",
    "MCPTools",
    "MemoryJournal",
    "Missing",
    "NotDone",
    "OutcomeUnknown",
    "State",
    "Stopped",
    "Tool",
    "ToolContext",
    "ToolError",
    "answer_key",
    "as_tool",
    "ask_reconcile",
    "call_tool",
    "edit_file",
    "list_files",
    "mcp_tools",
    "needs_approval",
    "read_file",
    "run_command",
    "tool",
    "unknown_tool",
    "write_file",
]
