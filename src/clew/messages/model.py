"""The messages of a conversation and the blocks they consist of, the same for all vendors.

The dialects translate these messages to and from the vendors' own formats.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "NOTE_MARK",
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


NOTE_MARK = "[clew] "
"""The text with which every note begins. A note is a message to the model that Clew itself wrote, not the user."""


class _Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class of all blocks, of which messages consist. A block is stored as an array that begins with its kind.

    New fields are added at the end and have defaults, so that old logs stay readable.
    """


class Text(_Block, tag="text", frozen=True):
    """A block of plain text."""

    text: str
    extra: dict[str, Any] | None = None
    """Fields that only one vendor has, such as citations, item ids and marks for prompt caching.

    The keys are the names of dialects.
    """


class Thinking(_Block, tag="thinking", frozen=True):
    """A model's reasoning. Signature and encrypted payload are kept byte for byte, because vendors refuse changed ones."""

    text: str = ""
    signature: str | None = None
    encrypted: str | None = None
    extra: dict[str, Any] | None = None


class ToolCall(_Block, tag="call", frozen=True):
    """The model's request to run a tool.

    `id` is the id that the vendor gave it. Clew itself identifies a call by two numbers: the index of its message in
    the history, and its own index among the calls of that message.
    """

    id: str
    name: str
    arguments: Any
    """The arguments as a JSON value, usually an object. If the model wrote invalid JSON, the text that it wrote."""
    extra: dict[str, Any] | None = None


class Json(_Block, tag="json", frozen=True):
    """A block with a JSON value that a tool returned."""

    value: Any
    extra: dict[str, Any] | None = None


class Image(_Block, tag="image", frozen=True):
    """A block with a picture, given as bytes, as a URL, or as the id of a file that was uploaded to a vendor."""

    media_type: str = ""
    data: bytes | None = None
    url: str | None = None
    file_id: str | None = None
    extra: dict[str, Any] | None = None


class File(_Block, tag="file", frozen=True):
    """A block with a document, given as bytes, as a URL, or as the id of a file that was uploaded to a vendor."""

    name: str = ""
    media_type: str = ""
    data: bytes | None = None
    url: str | None = None
    file_id: str | None = None
    extra: dict[str, Any] | None = None


class Opaque(_Block, tag="opaque", frozen=True):
    """A block of a kind that this version of Clew does not know.

    `value` is the block's JSON, unchanged, in the format of the vendor that `dialect` names.
    """

    dialect: str
    value: Any


class ToolResult(_Block, tag="result", frozen=True):
    """The result of a tool call. `call_id` is the vendor's id of that call."""

    call_id: str
    content: tuple[Text | Json | Image | File | Opaque, ...] = ()
    is_error: bool = False
    extra: dict[str, Any] | None = None


Block = Text | Thinking | ToolCall | ToolResult | Json | Image | File | Opaque


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class of all messages. A message is stored as an array that begins with its role.

    New fields are added at the end and have defaults, so that old logs stay readable.
    """


class System(_Message, tag="system", frozen=True):
    """A message with instructions, within the conversation. The thread's system prompt is not such a message; the log
    entry `ThreadStarted` holds it."""

    content: tuple[Block, ...]


class User(_Message, tag="user", frozen=True):
    """A message from the user."""

    content: tuple[Block, ...]


class Assistant(_Message, tag="assistant", frozen=True):
    """One response of a model: text, thinking and tool calls, in order."""

    content: tuple[Block, ...]
    model: str = ""
    stop: str = ""
    """Why the model stopped, in the vendor's term."""


class Tool(_Message, tag="tool", frozen=True):
    """The results of the preceding assistant message's tool calls, in the order of the calls."""

    content: tuple[Block, ...]


Message = System | User | Assistant | Tool


def system(*content: str | Block) -> System:
    """Make a system message. A plain string becomes a text block."""
    return System(_blocks(content))


def user(*content: str | Block) -> User:
    """Make a user message. A plain string becomes a text block."""
    return User(_blocks(content))


def assistant(*content: str | Block, model: str = "", stop: str = "") -> Assistant:
    """Make an assistant message. A plain string becomes a text block. `model` names the model that made the response,
    and `stop` is the reason why it stopped."""
    return Assistant(_blocks(content), model, stop)


def tool(*results: ToolResult) -> Tool:
    """Make a tool message of these results."""
    return Tool(results)


def _blocks(content: tuple[str | Block, ...]) -> tuple[Block, ...]:
    return tuple(Text(part) if isinstance(part, str) else part for part in content)


def plain_text(message: Message) -> str:
    """Return the text of a message, without thinking, tool calls and results."""
    return "\n".join(block.text for block in message.content if isinstance(block, Text))


def tool_calls(message: Message) -> tuple[ToolCall, ...]:
    """Return the tool calls of a message, in order. A call's index is its place in this tuple."""
    if type(message) is not Assistant:
        return ()
    return tuple([block for block in message.content if type(block) is ToolCall])
