"""What a message is made of. One vocabulary for all vendors; the dialects translate to and from it."""

from __future__ import annotations

from typing import Any

import msgspec

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


class _Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Encoded as an array, its kind first. New fields come last and have defaults, so that old logs stay readable."""


class Text(_Block, tag="text", frozen=True):
    """Words."""

    text: str
    extra: dict[str, Any] | None = None
    """What a vendor said beside it and Clew has no word for: citations, item ids, cache marks."""


class Thinking(_Block, tag="thinking", frozen=True):
    """A model's reasoning. The signature or encrypted payload is kept to the byte: vendors refuse it otherwise."""

    text: str = ""
    signature: str | None = None
    encrypted: str | None = None
    extra: dict[str, Any] | None = None


class ToolCall(_Block, tag="call", frozen=True):
    """The model asks for a tool. `id` is the vendor's; Clew knows a call by its message's position and its index."""

    id: str
    name: str
    arguments: Any
    """The JSON value, an object as a rule; the text itself where a model wrote something that is not JSON."""
    extra: dict[str, Any] | None = None


class Json(_Block, tag="json", frozen=True):
    """A JSON value that a tool returned."""

    value: Any
    extra: dict[str, Any] | None = None


class Image(_Block, tag="image", frozen=True):
    """A picture: its bytes, or where they are."""

    media_type: str = ""
    data: bytes | None = None
    url: str | None = None
    file_id: str | None = None
    extra: dict[str, Any] | None = None


class File(_Block, tag="file", frozen=True):
    """A document: its bytes, or where they are."""

    name: str = ""
    media_type: str = ""
    data: bytes | None = None
    url: str | None = None
    file_id: str | None = None
    extra: dict[str, Any] | None = None


class Opaque(_Block, tag="opaque", frozen=True):
    """A block that this version does not know, kept as it came so that nothing is lost."""

    dialect: str
    value: Any


class ToolResult(_Block, tag="result", frozen=True):
    """What a tool call came to. `call_id` is the vendor's id of the call it answers."""

    call_id: str
    content: tuple[Text | Json | Image | File | Opaque, ...] = ()
    is_error: bool = False
    extra: dict[str, Any] | None = None


Block = Text | Thinking | ToolCall | ToolResult | Json | Image | File | Opaque


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
