"""Arguments of calls, which both OpenAI dialects keep as a text that the model wrote."""

from __future__ import annotations

from typing import Any

from clew.messages.blocks import ToolCall
from clew.messages.dialects._values import arguments_text, plain, read_arguments, same
from clew.messages.dialects.loss import At, Notes

RAW = "arguments"
"""The field of a call's extra that keeps the model's own spelling, where Clew would have spelt it differently."""


def write_arguments(call: ToolCall, fields: dict[str, Any], at: At, notes: Notes) -> str:
    """The text of a call's arguments: as the model spelt them, if they are still the same. Takes RAW out of `fields`
    unless it was used."""
    text = arguments_text(call.arguments)
    raw = fields.pop(RAW, None)
    if isinstance(raw, str) and raw != text and same(read_arguments(raw), call.arguments):
        fields[RAW] = raw
        return raw
    if not same(read_arguments(text), call.arguments) or read_arguments(text) != call.arguments:
        notes.add(at, "arguments that are not JSON", "the nearest JSON value is sent")
    return text


def read_call_arguments(value: Any, fields: dict[str, Any]) -> Any:
    """The value of a call's arguments. Puts RAW into `fields` where the spelling is not ours."""
    if not isinstance(value, str):
        return "" if value is None else plain(value)
    arguments = read_arguments(value)
    if arguments_text(arguments) != value:
        fields[RAW] = value
    return arguments
