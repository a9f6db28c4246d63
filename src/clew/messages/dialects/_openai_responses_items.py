"""Items of the responses API that are not messages: reasoning, calls, their outputs, and those without a name here."""

from __future__ import annotations

from typing import Any, Literal

from clew.messages.blocks import Opaque, Text, Thinking, ToolCall, ToolResult
from clew.messages.dialects._arrange import Piece
from clew.messages.dialects._extras import beside, check, extra_of, own
from clew.messages.dialects._openai_calls import RAW, read_call_arguments, write_arguments
from clew.messages.dialects._openai_responses_parts import NAME, read_part, write_part
from clew.messages.dialects._reading import expect, need, parts_of
from clew.messages.dialects._values import plain
from clew.messages.dialects.loss import At, Notes

Item = dict[str, Any]
Side = Literal["system", "user", "assistant", "tool"]

NAMED = frozenset({"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"})
_CALL = frozenset({"type", "call_id", "name", "arguments", "input"})
_OUTPUT = frozenset({"type", "call_id", "output"})
_REASONING = frozenset({"type", "encrypted_content"})
_ROLES: dict[Any, Side] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class ItemIds:
    """Item ids may be sent once. A second use, or one that is no id, is left out."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def take(self, fields: dict[str, Any]) -> str | None:
        """The id in these fields, if it can be sent. It is taken out of them otherwise."""
        found = fields.get("id")
        if isinstance(found, str) and found and found not in self._used:
            self._used.add(found)
            return found
        fields.pop("id", None)
        return None


def side_of(item: Item) -> Side:
    """Who says an item: the model, unless it is a message of another's or the output of something."""
    kind = item["type"]
    if kind == "message":
        return _ROLES.get(item.get("role"), "assistant") if isinstance(item.get("role"), str) else "assistant"
    return "tool" if kind.endswith("_output") or kind == "mcp_approval_response" else "assistant"


def write_reasoning(block: Thinking, at: At, ids: ItemIds, notes: Notes) -> Item | None:
    """Reasoning goes back to the API that gave it an id, with its encrypted form to the byte."""
    fields = own(block.extra, NAME, _REASONING)
    if ids.take(fields) is None:
        notes.add(at, "thinking that this API did not give an id", "the API refuses it; it is left out")
        return None
    if block.signature is not None:
        notes.add(at, "the signature of thinking", "the API has no such thing")
    parts = fields.pop("summary", None)
    texts = _summary_texts(parts)
    if texts is not None and "\n\n".join(texts) == block.text and len(texts) > 1:
        fields["summary"] = parts
    elif block.text:
        parts = [{"type": "summary_text", "text": block.text}]
    else:
        parts = []
    check(block.extra, NAME, fields, at, notes)
    item = {"type": "reasoning", **fields, "summary": parts}
    return item if block.encrypted is None else {**item, "encrypted_content": block.encrypted}


def read_reasoning(item: Item) -> Thinking | Opaque:
    """Reasoning without an id, or of another shape, is kept whole: it can be given back, but not written anew."""
    texts, sealed = _summary_texts(item.get("summary")), item.get("encrypted_content")
    if texts is None or "" in texts or not isinstance(sealed, (str, type(None))):
        return Opaque(NAME, plain(item))
    fields = beside(item, _REASONING)
    if not isinstance(fields.get("id"), str) or not fields["id"]:
        return Opaque(NAME, plain(item))
    if len(texts) < 2:
        del fields["summary"]
    return Thinking("\n\n".join(texts), None, sealed, extra_of(NAME, fields))


def _summary_texts(summary: Any) -> list[str] | None:
    """The texts of a summary in its one known shape, else None."""
    if not isinstance(summary, list):
        return None
    known = [part for part in summary if isinstance(part, dict) and part.keys() == {"type", "text"}]
    if len(known) != len(summary) or any(part["type"] != "summary_text" for part in known):
        return None
    texts = [part["text"] for part in known]
    return texts if all(isinstance(text, str) for text in texts) else None


def write_call(piece: Piece, ids: ItemIds, notes: Notes) -> Item:
    call, at = piece.call, piece.at
    fields = own(call.extra, NAME, ("call_id", "name", "input"))
    ids.take(fields)
    kept = fields
    if is_custom(call):
        kept = {key: value for key, value in fields.items() if key != RAW}
        item = {**kept, "call_id": call.id, "name": call.name, "input": call.arguments}
    else:
        fields.pop("type", None)
        arguments = write_arguments(call, fields, at, notes)
        item = {**fields, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}
    check(call.extra, NAME, kept, at, notes)
    return item


def is_custom(call: ToolCall) -> bool:
    return own(call.extra, NAME).get("type") == "custom_tool_call" and isinstance(call.arguments, str)


def read_call(item: Item, where: str) -> ToolCall:
    fields = beside(item, _CALL)
    if item["type"] == "custom_tool_call":
        arguments: Any = need(item, "input", str, where)
        fields["type"] = item["type"]
    else:
        arguments = read_call_arguments(item.get("arguments"), fields)
    return ToolCall(
        need(item, "call_id", str, where), need(item, "name", str, where), arguments, extra_of(NAME, fields)
    )


def write_output(answer: Piece, custom: bool, ids: ItemIds, notes: Notes) -> Item:
    """The output of a call: a text if it is just that, else its parts."""
    result, at = answer.result, answer.at
    if result.is_error:
        notes.add(at, "that a result is an error", "an output cannot say so but in its text")
    parts = []
    for block in result.content:
        written = write_part(Piece(block, at), notes)
        if written:
            written.check(written.fields, at, notes)
            parts.append(written.part)
    if result.is_error and not parts:
        parts = [{"type": "input_text", "text": "The tool failed and said nothing."}]
    plain_text = len(parts) == 1 and parts[0].keys() == {"type", "text"} and parts[0]["type"] == "input_text"
    fields = own(result.extra, NAME, _OUTPUT)
    ids.take(fields)
    check(result.extra, NAME, fields, at, notes)
    kind = "custom_tool_call_output" if custom else "function_call_output"
    output = parts[0]["text"] if plain_text else parts or ""
    return {"type": kind, "call_id": result.call_id, "output": output, **fields}


def read_output(item: Item, where: str) -> ToolResult:
    call_id = need(item, "call_id", str, where)
    output = item.get("output")
    fields = beside(item, _OUTPUT)
    if isinstance(output, str):
        return ToolResult(call_id, (Text(output),) if output else (), extra=extra_of(NAME, fields))
    parts = parts_of(expect(output, list, f"{where}: the value of 'output'"), where)
    content = tuple(read_part(part, where) or Opaque(NAME, plain(part)) for part in parts if isinstance(part, dict))
    return ToolResult(call_id, content, extra=extra_of(NAME, fields))
