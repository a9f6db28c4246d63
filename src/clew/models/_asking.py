"""What the requests of all vendors have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.messages import Assistant, Block, Message, Opaque, Text, Thinking, ToolCall
from clew.models.base import ToolSpec

__all__ = ["is_strict", "merged", "parameters", "without_thinking"]

_OURS = ("messages", "input", "model", "stream", "n")
_RESPONSES = "openai-responses"
_BOUND = ("id", "message")
"""What ties an item of the responses API to the reasoning before it."""


def merged(body: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the user's options. Mappings are merged, lists joined, and any other option replaces ours."""
    for key in options:
        if key in _OURS:
            raise InvalidInput(f"the option {key!r} is not one to set: it is what the conversation is made into")
    together = dict(body)
    for key, value in options.items():
        ours = together.get(key)
        if isinstance(ours, Mapping) and isinstance(value, Mapping):
            together[key] = {**ours, **value}
        elif isinstance(ours, list) and isinstance(value, (list, tuple)):
            together[key] = [*ours, *(one for one in value if one not in ours)]
        else:
            together[key] = value
    return together


def parameters(tool: ToolSpec) -> dict[str, Any]:
    return tool.parameters or {"type": "object", "properties": {}}


def without_thinking(messages: Sequence[Message]) -> list[Message]:
    """The conversation without the model's thinking, and without the ids of what came of it."""
    return [
        Assistant(tuple(_loose(block) for block in message.content if not _is_thinking(block)))
        if isinstance(message, Assistant)
        else message
        for message in messages
    ]


def _is_thinking(block: Block) -> bool:
    if isinstance(block, Opaque):
        return isinstance(block.value, dict) and block.value.get("type") == "reasoning"
    return isinstance(block, Thinking)


def _loose(block: Block) -> Block:
    said = block.extra.get(_RESPONSES) if isinstance(block, (Text, ToolCall)) and block.extra else None
    if not isinstance(said, Mapping) or not isinstance(block, (Text, ToolCall)) or block.extra is None:
        return block
    kept = {key: value for key, value in said.items() if key not in _BOUND}
    others = {key: value for key, value in block.extra.items() if key != _RESPONSES}
    extra = {**others, _RESPONSES: kept} if kept else others
    return msgspec.structs.replace(block, extra=extra or None)


def is_strict(schema: Any) -> bool:
    """Whether OpenAI can hold a response to this schema: its objects are closed, and all they name is required.

    A schema that cannot be enforced is sent as a wish.
    """
    if isinstance(schema, list):
        return all(is_strict(one) for one in schema)
    if not isinstance(schema, Mapping):
        return True
    named = schema.get("properties")
    if schema.get("type") == "object" or isinstance(named, Mapping):
        required = schema.get("required")
        names = set(named) if isinstance(named, Mapping) else set()
        if schema.get("additionalProperties") is not False or names - set(required or ()):
            return False
    inner = [
        value for key, value in schema.items() if key not in ("properties", "$defs", "definitions", "enum", "const")
    ]
    for key in ("properties", "$defs", "definitions"):
        inner += list(schema[key].values()) if isinstance(schema.get(key), Mapping) else []
    return all(is_strict(one) for one in inner if isinstance(one, (Mapping, list)))
