"""Clew's own form of a conversation: messages and their blocks, the same for all models, providers and stores."""

from __future__ import annotations

from clew.messages.model import (
    Assistant,
    Block,
    File,
    Image,
    Json,
    Message,
    Opaque,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
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
