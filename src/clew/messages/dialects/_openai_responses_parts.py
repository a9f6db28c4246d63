"""Parts of messages and of call outputs, as OpenAI's responses API says them."""

from __future__ import annotations

from typing import Any, NamedTuple

from clew.errors import InvalidInput
from clew.messages.blocks import Block, File, Image, Json, Opaque, Text
from clew.messages.dialects import _media as media
from clew.messages.dialects._arrange import Piece
from clew.messages.dialects._extras import Extra, beside, extra_of, own
from clew.messages.dialects._reading import exactly, need
from clew.messages.dialects._values import data_url, dumps, is_media_type, plain, read_data_url
from clew.messages.dialects.loss import At, Notes

NAME = "openai-responses"
MESSAGE = "message"
"""The field of a block's extra that holds what was said of the message item which the block begins: its id, for one."""
Part = dict[str, Any]

_TEXT = frozenset({"type", "text"})
_IMAGE = frozenset({"type", "image_url", "file_id"})
_FILE = frozenset({"type", "filename", "file_data", "file_url", "file_id"})
_ITEM_ENDINGS = ("message", "reasoning", "_reference", "_call", "_output", "_request", "_response", "_tools")
_LISTS = ("annotations", "logprobs")


class Written(NamedTuple):
    """A part, the fields of the vendor's that it holds, and the block's extra: so that its writer can tell what is lost."""

    part: Part
    fields: dict[str, Any]
    extra: Extra

    def check(self, kept: dict[str, Any], at: At, notes: Notes) -> None:
        """Note it if the extra is not what comes back when `kept` of it was said."""
        if (self.extra or None) != extra_of(NAME, kept):
            notes.add(at, "what a vendor said beside the block", f"{NAME} says it differently there")


def write_part(piece: Piece, notes: Notes) -> Written | None:
    """A block as a user says it, or a tool. None if the API has no such part."""
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
    notes.add(at, "an image or file the API cannot take there", "words are sent in its place")
    return Written({"type": "input_text", "text": media.words_for(block)}, {}, None)


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in _LISTS or value != []}


def _write_image(block: Image, at: At, notes: Notes) -> Written | None:
    form = media.image_form(block)
    if form == "data":
        source = {"image_url": data_url(media.image_type(block), block.data or b"")}
        back = Image(media.image_type(block), block.data, extra=block.extra)
    elif form == "url":
        source = {"image_url": str(block.url)}
        back = Image(url=block.url, extra=block.extra)
    elif media.is_openai_file(block.file_id):
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
    form = media.file_form(block)
    if form == "data" and block.data:
        media_type = block.media_type if is_media_type(block.media_type) else "application/octet-stream"
        name = block.name or "file"
        source = {"filename": name, "file_data": data_url(media_type, block.data)}
        back = File(name, media_type, block.data, extra=block.extra)
    elif form == "url":
        source = {"file_url": str(block.url)}
        back = File(url=block.url, extra=block.extra)
    elif media.is_openai_file(block.file_id):
        source = {"file_id": str(block.file_id)}
        back = File(file_id=block.file_id, extra=block.extra)
    else:
        return None
    if back != block:
        notes.add(at, "a part of what is known of a file", "the API takes its name and bytes, its address, or its id")
    return _written({"type": "input_file", **source}, own(block.extra, NAME, (*_FILE, MESSAGE)), block.extra)


def reread_inside(block: Opaque) -> Block | None:
    """What an opaque block in a result is, read anew. Items are no parts."""
    value = plain(block.value)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str) or value["type"].endswith(_ITEM_ENDINGS):
        return None
    try:
        return read_part(value, "block") or Opaque(NAME, value)
    except InvalidInput:
        return None


def read_part(part: Part, where: str) -> Text | Image | File | None:
    """The block that a part of content says, or None if Clew has no word for it."""
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
            return Image(*found, extra=extra) if found[1] and media.is_image_type(found[0]) else None
        return Image(url=source["image_url"], extra=extra) if media.is_link(source["image_url"]) else None
    if exactly(source, "file_id") and media.is_openai_file(source["file_id"]):
        return Image(file_id=source["file_id"], extra=extra)
    return None


def _read_file(part: Part) -> File | None:
    extra = extra_of(NAME, beside(part, (*_FILE, MESSAGE)))
    source = {key: part[key] for key in _FILE if key != "type" and part.get(key) is not None}
    if exactly(source, "filename", "file_data"):
        found, name = read_data_url(source["file_data"]), source["filename"]
        if found and found[1] and isinstance(name, str) and name:
            return File(name, *found, extra=extra)
    elif exactly(source, "file_url") and media.is_link(source["file_url"]):
        return File(url=source["file_url"], extra=extra)
    elif exactly(source, "file_id") and media.is_openai_file(source["file_id"]):
        return File(file_id=source["file_id"], extra=extra)
    return None
