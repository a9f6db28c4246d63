"""Blocks as parts of chat completion messages, one at a time."""

from __future__ import annotations

from typing import Any, Literal

from clew.errors import InvalidInput
from clew.messages.blocks import Block, File, Image, Json, Opaque, Text, ToolResult
from clew.messages.dialects import _media as media
from clew.messages.dialects._arrange import Piece
from clew.messages.dialects._extras import beside, check, extra_of, own
from clew.messages.dialects._reading import exactly, need
from clew.messages.dialects._values import data_url, dumps, is_media_type, plain, read_data_url
from clew.messages.dialects.loss import At, Notes

NAME = "openai-chat"
Place = Literal["system", "user", "assistant", "result"]
Part = dict[str, Any]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_USER_ONLY = frozenset({"image_url", "input_audio", "file"})
_ASSISTANT_ONLY = frozenset({"refusal"})
_FIELDS = {
    "text": frozenset({"type", "text"}),
    "image_url": frozenset({"type", "image_url"}),
    "file": frozenset({"type", "file"}),
}


def about_message(fields: dict[str, Any]) -> Opaque:
    """What a vendor said of a message itself, its name or its audio, as the first block of it. A message of a role that
    Clew has no word for is one such block and nothing else."""
    return Opaque(NAME, {"message": fields})


def said_of_message(block: Block) -> dict[str, Any] | None:
    if not isinstance(block, Opaque) or "type" in block.value:
        return None
    fields: dict[str, Any] = block.value["message"]
    return fields


def is_whole(block: Block) -> bool:
    fields = said_of_message(block)
    return fields is not None and isinstance(fields.get("role"), str) and fields["role"] not in ROLES


def write_part(piece: Piece, place: Place, notes: Notes) -> Part | None:
    """The block as the API takes it at this place, or None if it cannot be said there. Says in `notes` what is lost."""
    block, at = piece
    if isinstance(block, Text):
        return _write_text(block, at, notes)
    if isinstance(block, Json):
        notes.add(at, "a JSON value", "it is sent, and comes back, as text")
        return {"type": "text", "text": dumps(block.value)}
    if isinstance(block, (Image, File)):
        return _write_media(block, place, at, notes)
    if isinstance(block, Opaque) and _fits(block.value.get("type"), place):
        return dict(block.value)
    notes.add(at, "a block the API does not take there", "it is left out")
    return None


def _fits(kind: Any, place: Place) -> bool:
    if not isinstance(kind, str) or place in ("system", "result"):
        return False
    return kind not in (_ASSISTANT_ONLY if place == "user" else _USER_ONLY)


def _write_text(block: Text, at: At, notes: Notes) -> Part | None:
    if not block.text:
        if block.extra:
            notes.add(at, "an empty text with something beside it", "empty texts are left out")
        return None
    fields = own(block.extra, NAME, _FIELDS["text"])
    check(block.extra, NAME, fields, at, notes)
    return {"type": "text", "text": block.text, **fields}


def _write_media(block: Image | File, place: Place, at: At, notes: Notes) -> Part:
    part = None
    if place == "user":
        part = _write_image(block, at, notes) if isinstance(block, Image) else _write_file(block, at, notes)
    if part is None:
        notes.add(at, "an image or file the API cannot take there", "words are sent in its place")
        part = {"type": "text", "text": media.words_for(block)}
    return part


def _write_image(block: Image, at: At, notes: Notes) -> Part | None:
    form = media.image_form(block)
    if form == "data":
        url = data_url(media.image_type(block), block.data or b"")
        back = Image(media.image_type(block), block.data, extra=block.extra)
    elif form == "url":
        url = str(block.url)
        back = Image(url=block.url, extra=block.extra)
    else:
        return None
    if back != block:
        notes.add(at, "a part of what is known of an image", "the API has one address for an image and no more")
    fields = own(block.extra, NAME, ("type",))
    inner = _inner(fields, "image_url", ("url",))
    check(block.extra, NAME, fields, at, notes)
    return {"type": "image_url", **fields, "image_url": {"url": url, **inner}}


def _inner(fields: dict[str, Any], key: str, taken: tuple[str, ...]) -> dict[str, Any]:
    """The fields that belong inside the object under `key`; what is not such is taken out of `fields`."""
    inner = fields.pop(key, None)
    kept = beside(inner, taken) if isinstance(inner, dict) else {}
    if kept:
        fields[key] = kept
    return kept


def _write_file(block: File, at: At, notes: Notes) -> Part | None:
    fields = own(block.extra, NAME, _FIELDS["file"])
    if block.data:
        media_type = block.media_type if is_media_type(block.media_type) else "application/octet-stream"
        name = block.name or "file"
        file = {"filename": name, "file_data": data_url(media_type, block.data)}
        back = File(name, media_type, block.data, extra=block.extra)
    elif media.is_openai_file(block.file_id):
        file = {"file_id": str(block.file_id)}
        back = File(file_id=block.file_id, extra=block.extra)
    else:
        return None
    if back != block:
        notes.add(at, "a part of what is known of a file", "the API takes its name and bytes, or its id")
    check(block.extra, NAME, fields, at, notes)
    return {"type": "file", **fields, "file": file}


def moves(result: ToolResult, block: Block) -> bool:
    """Tool messages hold text alone: what can be shown to the model moves behind them."""
    if not isinstance(block, (Image, File)):
        return False
    part = write_part(Piece(block, (0, None)), "user", Notes())
    return part is not None and part["type"] != "text"


def reread(block: Opaque, inside: bool) -> Block | None:
    """What an opaque block is, read anew: a part, the fields of a message, or a message of an unknown role."""
    value = plain(block.value)
    if not isinstance(value, dict):
        return None
    if "type" not in value:
        fields = value.get("message")
        return about_message(fields) if isinstance(fields, dict) and len(value) == 1 and not inside else None
    try:
        return read_part(value, "block") if isinstance(value["type"], str) else None
    except InvalidInput:
        return None


def read_part(part: Part, where: str) -> Text | Image | File | Opaque:
    """The block that a part says. One of an unknown kind or shape is kept whole."""
    kind = part["type"]
    fields = beside(part, _FIELDS.get(kind, ()))
    if kind == "text":
        return Text(need(part, "text", str, where), extra_of(NAME, fields))
    block: Image | File | None = None
    if kind == "image_url":
        block = _read_image(need(part, "image_url", dict, where), fields)
    elif kind == "file":
        block = _read_file(need(part, "file", dict, where), fields)
    return block or Opaque(NAME, plain(part))


def _read_image(inner: dict[str, Any], fields: dict[str, Any]) -> Image | None:
    rest = beside(inner, ("url",))
    extra = extra_of(NAME, {**fields, "image_url": rest} if rest else fields)
    found = read_data_url(inner.get("url"))
    if found:
        media_type, data = found
        return Image(media_type, data, extra=extra) if data and media.is_image_type(media_type) else None
    return Image(url=inner["url"], extra=extra) if media.is_link(inner.get("url")) else None


def _read_file(inner: dict[str, Any], fields: dict[str, Any]) -> File | None:
    extra = extra_of(NAME, fields)
    if exactly(inner, "filename", "file_data"):
        found = read_data_url(inner["file_data"])
        name = inner["filename"]
        if not found or not found[1] or not isinstance(name, str) or not name:
            return None
        return File(name, found[0], found[1], extra=extra)
    if exactly(inner, "file_id") and media.is_openai_file(inner["file_id"]):
        return File(file_id=inner["file_id"], extra=extra)
    return None
