"""The canonical conversation: messages of four roles."""

from __future__ import annotations

import msgspec

from clew.messages.blocks import Block, Text, ToolCall, ToolResult

__all__ = [
    "Assistant",
    "Message",
    "System",
    "Tool",
    "User",
    "assistant",
    "plain_text",
    "system",
    "tool",
    "tool_calls",
    "user",
]


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Encoded as an array with its role first. New fields come last and have defaults."""


class System(_Message, tag="system", frozen=True):
    """Instructions inside the conversation; the thread's own system prompt is part of its start."""

    content: tuple[Block, ...]


class User(_Message, tag="user", frozen=True):
    content: tuple[Block, ...]


class Assistant(_Message, tag="assistant", frozen=True):
    """One response of a model: text, thinking and the calls it asks for, in their order."""

    content: tuple[Block, ...]
    model: str = ""
    stop: str = ""
    """Why the model stopped, in the vendor's word."""


class Tool(_Message, tag="tool", frozen=True):
    """The results of the calls of the assistant message before it, in the order of the calls."""

    content: tuple[Block, ...]


Message = System | User | Assistant | Tool


def system(*content: str | Block) -> System:
    return System(_blocks(content))


def user(*content: str | Block) -> User:
    return User(_blocks(content))


def assistant(*content: str | Block, model: str = "", stop: str = "") -> Assistant:
    return Assistant(_blocks(content), model, stop)


def tool(*results: ToolResult) -> Tool:
    return Tool(results)


def _blocks(content: tuple[str | Block, ...]) -> tuple[Block, ...]:
    return tuple(Text(part) if isinstance(part, str) else part for part in content)


def plain_text(message: Message) -> str:
    """The words of a message, without thinking, calls and results."""
    return "\n".join(block.text for block in message.content if isinstance(block, Text))


def tool_calls(message: Message) -> tuple[ToolCall, ...]:
    """The calls a message asks for, in order: a call's index is its place here."""
    if type(message) is not Assistant:
        return ()
    return tuple([block for block in message.content if type(block) is ToolCall])
