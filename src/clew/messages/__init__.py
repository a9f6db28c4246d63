"""The canonical conversation that every model, provider and store shares."""

from __future__ import annotations

from clew.messages.blocks import Block, File, Image, Json, Opaque, Text, Thinking, ToolCall, ToolResult
from clew.messages.conversation import (
    Assistant,
    Message,
    System,
    Tool,
    User,
    assistant,
    plain_text,
    system,
    tool,
    tool_calls,
    user,
)

__all__ = [
    "Assistant",
    "Block",
    "File",
    "Image",
    "Json",
    "Message",
    "Opaque",
    "System",
    "Text",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolResult",
    "User",
    "assistant",
    "plain_text",
    "system",
    "tool",
    "tool_calls",
    "user",
]
