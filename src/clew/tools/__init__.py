"""Tools: functions that a model may call. A tool declares what may happen if it runs again after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew._runtime.lazy import exports

if TYPE_CHECKING:
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

__getattr__, __dir__ = exports(
    __name__,
    {
        "AnyTool": "clew.tools.decorator",
        "BadArguments": "clew.tools.signals",
        "BlockingSteps": "clew.tools.context",
        "DEFAULT_TOOLS": "clew.tools.builtin.defaults",
        "Effect": "clew.tools.decorator",
        "InDoubt": "clew.tools.decorator",
        "Interrupted": "clew.tools.signals",
        "Journal": "clew.tools.context",
        "MCPTools": "clew.tools.mcp",
        "MemoryJournal": "clew.tools.context",
        "Missing": "clew.tools.context",
        "NOT_DONE": "clew.tools.signals",
        "NotDone": "clew.tools.signals",
        "OutcomeUnknown": "clew.tools.signals",
        "State": "clew.tools.context",
        "Stopped": "clew.tools.signals",
        "Tool": "clew.tools.decorator",
        "ToolContext": "clew.tools.context",
        "ToolError": "clew.tools.signals",
        "answer_key": "clew.tools.context",
        "as_tool": "clew.tools.decorator",
        "ask_reconcile": "clew.tools.call",
        "call_tool": "clew.tools.call",
        "edit_file": "clew.tools.builtin.files",
        "list_files": "clew.tools.builtin.files",
        "mcp_tools": "clew.tools.mcp",
        "needs_approval": "clew.tools.call",
        "read_file": "clew.tools.builtin.files",
        "run_command": "clew.tools.builtin.shell",
        "tool": "clew.tools.decorator",
        "unknown_tool": "clew.tools.call",
        "write_file": "clew.tools.builtin.files",
    },
)
