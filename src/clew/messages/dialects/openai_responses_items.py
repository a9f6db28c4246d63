"""Translate single items of OpenAI's responses API, and the parts of message items.

Items are the JSON objects of a request's list: messages, reasoning, calls and outputs of tools. Parts are the JSON
objects of a message item's content: texts, images and files.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from clew.errors import InvalidInput
from clew.messages.dialects import shared
from clew.messages.dialects.arrange import Piece
from clew.messages.dialects.losses import At, Notes
from clew.messages.dialects.shared import (
    RAW,
    Extra,
    beside,
    check,
    data_url,
    dumps,
    exactly,
    expect,
    extra_of,
    is_media_type,
    need,
    own,
    parts_of,
    plain,
    read_call_arguments,
    read_data_url,
    write_arguments,
)
from clew.messages.model import Block, File, Image, Json, Opaque, Text, Thinking, ToolCall, ToolResult

__all__ = [
    "MESSAGE",
    "NAME",
    "NAMED",
    "Item",
    "ItemIds",
    "Part",
    "Side",
    "Written",
    "is_custom",
    "read_call",
    "read_output",
    "read_part",
    "read_reasoning",
    "reread_inside",
    "side_of",
    "words",
    "write_call",
    "write_output",
    "write_part",
    "write_reasoning",
]

NAME = "openai-responses"
MESSAGE = "message"
"""Key in the extra fields of the first block of a message item.

Its value holds the fields that only this API has of the item itself, such as the item's id.
"""
Part = dict[str, Any]

_TEXT = frozenset({"type", "text"})
_IMAGE = frozenset({"type", "image_url", "file_id"})
_FILE = frozenset({"type", "filename", "file_data", "file_url", "file_id"})
_ITEM_ENDINGS = ("message", "reasoning", "_reference", "_call", "_output", "_request", "_response", "_tools")
_LISTS = ("annotations", "logprobs")

Item = dict[str, Any]
Side = Literal["system", "user", "assistant", "tool"]

NAMED = frozenset({"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"})
_CALL = frozenset({"type", "call_id", "name", "arguments", "input"})
_OUTPUT = frozenset({"type", "call_id", "output"})
_REASONING = frozenset({"type", "encrypted_content"})
_ROLES: dict[Any, Side] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class ItemIds:
    """Remembers which ids of items (JSON objects of a request's list) were used, so that none is sent twice."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def take(self, fields: dict[str, Any]) -> str | None:
        """Return the id in `fields`, the JSON object of an item that the request is to hold, and remember it as used.

        If there is none, or it is invalid or used already, remove it from `fields` and return None.
        """
        found = fields.get("id")
        if isinstance(found, str) and found and found not in self._used:
            self._used.add(found)
            return found
        fields.pop("id", None)
        return None


def side_of(item: Item) -> Side:
    """Return the role to which an item (a JSON object of the API's list) belongs. It is the message's role for a
    message, "tool" for a tool's output, and "assistant" for any other item."""
    kind = item["type"]
    if kind == "message":
        return _ROLES.get(item.get("role"), "assistant") if isinstance(item.get("role"), str) else "assistant"
    return "tool" if kind.endswith("_output") or kind == "mcp_approval_response" else "assistant"


def write_reasoning(block: Thinking, at: At, ids: ItemIds, notes: Notes) -> Item | None:
    """Return a block of thinking as a reasoning item, a JSON object of the request's list.

    The API refuses reasoning that has no id from this API, or an id that was used before in the request. Then the
    thinking is added to `notes` as lost, with the block's place `at`, and None is returned. `ids` remembers the ids
    that were used. Encrypted content is kept byte for byte.
    """
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
    """Return the thinking in a reasoning item, a JSON object of the API's list.

    An item without an id or of an unknown shape is kept whole as `Opaque`, so that it can be sent back unchanged.
    """
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
    """Return the texts in the `summary` of a reasoning item, or None if it has an unknown shape."""
    if not isinstance(summary, list):
        return None
    known = [part for part in summary if isinstance(part, dict) and part.keys() == {"type", "text"}]
    if len(known) != len(summary) or any(part["type"] != "summary_text" for part in known):
        return None
    texts = [part["text"] for part in known]
    return texts if all(isinstance(text, str) for text in texts) else None


def write_call(piece: Piece, ids: ItemIds, notes: Notes) -> Item:
    """Return a tool call as an item, a JSON object of the request's list: a custom tool call if `is_custom` says so,
    else a function call. `ids` has the ids of items that were used before in the request: such an id is not sent again.
    Adds to `notes` what the API cannot express."""
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
    """Return whether this is a call of what OpenAI names a custom tool: one whose input is plain text instead of JSON."""
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
    """Return a tool result as an output item, a JSON object of the request's list. In it a single plain text becomes a
    string, and anything else a list of parts.

    `custom` is True if the call was to what OpenAI names a custom tool. `ids` has the ids of items that were used
    before in the request: such an id is not sent again. Adds to `notes` what of the result the API cannot express.
    """
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


class Written(NamedTuple):
    """A block written as a part (a JSON object of a message's content) for OpenAI's Responses API.

    `fields` are those fields of the part that only this API has. `extra` is the block's own record of the fields that
    only one vendor's API has. `check` compares the two to find out what is lost.
    """

    part: Part
    fields: dict[str, Any]
    extra: Extra

    def check(self, kept: dict[str, Any], at: At, notes: Notes) -> None:
        """Check that reading the written block back would give it the same `extra`, its record of fields that only one
        vendor has. If not, add a loss to `notes`. `kept` are the fields of this kind that were written.

        `at` is the block's place in the conversation.
        """
        if (self.extra or None) != extra_of(NAME, kept):
            notes.add(at, "what a vendor said beside the block", f"{NAME} says it differently there")


def write_part(piece: Piece, notes: Notes) -> Written | None:
    """Return a block as a part (a JSON object) of a message or of a tool's output.

    Returns None if the block is an empty text or the API has no such part. Adds to `notes` what of the block the API
    cannot express.
    """
    block, at = piece
    if isinstance(block, Text):
        if block.text:
            fields = own(block.extra, NAME, (*_TEXT, MESSAGE))
            return _written({"type": "input_text", "text": block.text}, _without_empty(fields), block.extra)
        if block.extra:
            notes.add(at, "an empty text with something beside it", "empty texts are left out")
        return None
    if isinstance(block, Json):
        notes.add(at, "a JSON value", "it is sent, and comes back, as text")
        return Written({"type": "input_text", "text": dumps(block.value)}, {}, None)
    if isinstance(block, (Image, File)):
        written = _write_image(block, at, notes) if isinstance(block, Image) else _write_file(block, at, notes)
        return written or words(block, at, notes)
    if isinstance(block, Opaque):
        return Written(dict(block.value), {}, None)
    notes.add(at, "a block the API does not take there", "it is left out")
    return None


def _written(part: Part, fields: dict[str, Any], extra: Extra) -> Written:
    return Written({**part, **fields}, fields, extra)


def words(block: Image | File, at: At, notes: Notes) -> Written:
    """Return a text that names an image or file, to be sent instead of it because the API does not accept it. Adds the
    loss to `notes`, with the block's place `at`."""
    notes.add(at, "an image or file the API cannot take there", "words are sent in its place")
    return Written({"type": "input_text", "text": shared.words_for(block)}, {}, None)


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in _LISTS or value != []}


def _write_image(block: Image, at: At, notes: Notes) -> Written | None:
    form = shared.image_form(block)
    if form == "data":
        source = {"image_url": data_url(shared.image_type(block), block.data or b"")}
        back = Image(shared.image_type(block), block.data, extra=block.extra)
    elif form == "url":
        source = {"image_url": str(block.url)}
        back = Image(url=block.url, extra=block.extra)
    elif shared.is_openai_file(block.file_id):
        source = {"file_id": str(block.file_id)}
        back = Image(file_id=block.file_id, extra=block.extra)
    else:
        return None
    if back != block:
        notes.add(at, "a part of what is known of an image", "the API has one source for an image and no more")
    fields = own(block.extra, NAME, (*_IMAGE, MESSAGE))
    if fields.get("detail") == "auto":
        del fields["detail"]
    return _written({"type": "input_image", "detail": "auto", **source}, fields, block.extra)


def _write_file(block: File, at: At, notes: Notes) -> Written | None:
    form = shared.file_form(block)
    if form == "data" and block.data:
        media_type = block.media_type if is_media_type(block.media_type) else "application/octet-stream"
        name = block.name or "file"
        source = {"filename": name, "file_data": data_url(media_type, block.data)}
        back = File(name, media_type, block.data, extra=block.extra)
    elif form == "url":
        source = {"file_url": str(block.url)}
        back = File(url=block.url, extra=block.extra)
    elif shared.is_openai_file(block.file_id):
        source = {"file_id": str(block.file_id)}
        back = File(file_id=block.file_id, extra=block.extra)
    else:
        return None
    if back != block:
        notes.add(at, "a part of what is known of a file", "the API takes its name and bytes, its address, or its id")
    return _written({"type": "input_file", **source}, own(block.extra, NAME, (*_FILE, MESSAGE)), block.extra)


def reread_inside(block: Opaque) -> Block | None:
    """Read the JSON in an opaque block again. The block is in a tool result; its kind was unknown when it was first
    read, but this version may know it. Returns the block for the JSON, which is opaque again if the kind is still
    unknown.

    Returns None if the JSON is invalid, or if its kind (such as a message or a call) never stands inside a tool result.
    """
    value = plain(block.value)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str) or value["type"].endswith(_ITEM_ENDINGS):
        return None
    try:
        return read_part(value, "block") or Opaque(NAME, value)
    except InvalidInput:
        return None


def read_part(part: Part, where: str) -> Text | Image | File | None:
    """Return the block for a part (a JSON object of an item's content), or None if its type or shape is unknown.

    Raises `InvalidInput` if a text part has no text; `where` names the item in the error.
    """
    kind = part["type"]
    if kind in ("input_text", "output_text", "text"):
        fields = _without_empty(beside(part, (*_TEXT, MESSAGE)))
        return Text(need(part, "text", str, where), extra_of(NAME, fields))
    if kind == "input_image":
        return _read_image(part)
    return _read_file(part) if kind == "input_file" else None


def _read_image(part: Part) -> Image | None:
    fields = beside(part, (*_IMAGE, MESSAGE))
    if fields.get("detail") == "auto":
        del fields["detail"]
    extra = extra_of(NAME, fields)
    source = {key: part[key] for key in ("image_url", "file_id") if part.get(key) is not None}
    if exactly(source, "image_url"):
        found = read_data_url(source["image_url"])
        if found:
            return Image(*found, extra=extra) if found[1] and shared.is_image_type(found[0]) else None
        return Image(url=source["image_url"], extra=extra) if shared.is_link(source["image_url"]) else None
    if exactly(source, "file_id") and shared.is_openai_file(source["file_id"]):
        return Image(file_id=source["file_id"], extra=extra)
    return None


def _read_file(part: Part) -> File | None:
    extra = extra_of(NAME, beside(part, (*_FILE, MESSAGE)))
    source = {key: part[key] for key in _FILE if key != "type" and part.get(key) is not None}
    if exactly(source, "filename", "file_data"):
        found, name = read_data_url(source["file_data"]), source["filename"]
        if found and found[1] and isinstance(name, str) and name:
            return File(name, *found, extra=extra)
    elif exactly(source, "file_url") and shared.is_link(source["file_url"]):
        return File(url=source["file_url"], extra=extra)
    elif exactly(source, "file_id") and shared.is_openai_file(source["file_id"]):
        return File(file_id=source["file_id"], extra=extra)
    return None
