"""What a message is made of. One vocabulary for all vendors; the dialects translate to and from it."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Block", "File", "Image", "Json", "Opaque", "Text", "Thinking", "ToolCall", "ToolResult"]


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
