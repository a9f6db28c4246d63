"""Translates the parts of Gemini's messages: texts, thoughts, function calls and responses, images and files.

A part is a JSON object with one key for its data, such as `text` or `functionCall`, and further keys, such as
`thoughtSignature`.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from typing import Any, Literal

from clew.errors import InvalidInput
from clew.messages.dialects import shared
from clew.messages.dialects.arrange import Piece
from clew.messages.dialects.losses import At, Notes
from clew.messages.dialects.shared import (
    Extra,
    beside,
    check,
    decode_base64,
    dumps,
    encode_base64,
    exactly,
    extra_of,
    may,
    need,
    own,
    plain,
)
from clew.messages.model import Block, File, Image, Json, Opaque, Text, Thinking, ToolCall, ToolResult

__all__ = [
    "CANDIDATE",
    "NAME",
    "SIGNATURE",
    "Part",
    "Place",
    "camel",
    "is_empty",
    "moves",
    "read_part",
    "read_result",
    "reread",
    "write_part",
    "write_result",
]

NAME = "gemini"
Place = Literal["system", "user", "assistant", "result"]
Part = dict[str, Any]

SIGNATURE = "thoughtSignature"
"""The key beside a part's data with the encrypted reasoning before that part. It has to be sent back with it."""
_THOUGHT = "thought"
CANDIDATE = "candidate"
"""Key in the extra fields of a text. Its value is what the vendor said about the whole response, such as the sources of
a web search. It is kept on record and not sent back."""

_OF_MODEL = frozenset({"functionCall", "executableCode", "codeExecutionResult", "toolCall"})
_OF_USER = frozenset({"functionResponse"})
_DATA = frozenset({"text", "inlineData", "fileData", "toolResponse"}) | _OF_MODEL | _OF_USER
"""Keys for the data of a part. A part has one of them at most."""
_CALL = frozenset({"id", "name", "args"})
_RESPONSE = frozenset({"id", "name", "response", "parts"})
_IMAGES = frozenset({"image/jpeg", "image/png", "image/webp", "image/heic", "image/heif"})
_ANY_IMAGE = "image/jpeg"
"""The type that is sent with the address of an image if neither the image nor the address says one: the API needs one,
and reads the picture itself."""
_PDF = "application/pdf"
_PLAIN = "text/plain"
_TEXTS = frozenset(
    {
        *(_PLAIN, "text/html", "text/css", "text/csv", "text/xml", "text/rtf", "text/md", "text/markdown"),
        *("text/javascript", "text/x-python"),
    }
)
_MEDIA = ("audio/", "video/")
_SNAKE = re.compile(r"(?<=[a-z0-9])_([a-z0-9])")


def camel(value: Part) -> Part:
    """Return a copy of a JSON object with its keys in the API's usual spelling, such as `inlineData`. The API also
    accepts `inline_data`, and the vendor's SDK writes some keys in that way. Keys of objects inside are not changed."""
    return {
        _SNAKE.sub(lambda found: found[1].upper(), key) if isinstance(key, str) else key: inner
        for key, inner in value.items()
    }


def is_empty(part: Part) -> bool:
    """Return whether a part (a JSON object of a Gemini message) has no key with a value other than null."""
    return all(value is None for value in part.values())


def write_part(piece: Piece, place: Place, notes: Notes) -> Part | None:
    """Return a block as a part (a JSON object of a Gemini message) for this `place`: a message of that role, or a
    function response. Return None if the API accepts no such block there. Adds to `notes` what of the block the API
    cannot express."""
    block, at = piece
    if isinstance(block, Text):
        return _write_text(block, at, notes)
    if isinstance(block, Json):
        notes.add(at, "a JSON value", "it is sent, and comes back, as text")
        return {"text": dumps(block.value)}
    if isinstance(block, (Image, File)):
        return _write_media(block, place, at, notes)
    if isinstance(block, Thinking):
        return _write_thinking(block, at, notes)
    if isinstance(block, ToolCall):
        return _write_call(block, at, notes)
    if isinstance(block, Opaque) and _fits(block.value, place):
        return dict(block.value)
    notes.add(at, "a block the API does not take there", "it is left out")
    return None


def _fits(value: Part, place: Place) -> bool:
    """Return whether the API accepts `value`, the JSON of a block of a kind that Clew does not know, in this `place`: a
    message of that role, or a tool result. Inside tool results it accepts none."""
    if place == "assistant":
        return not _OF_USER & value.keys()
    return place == "user" and not _OF_MODEL & value.keys()


def _with(part: Part, block: Text | Image | File | ToolCall, at: At, notes: Notes) -> Part:
    """Return `part`, the JSON of a block, with the block's fields that only this API has. These fields are in the
    block's `extra`. If not all of `extra` can be sent, adds that loss to `notes`. `at` is the block's place in the
    conversation."""
    taken = _DATA | {CANDIDATE, _THOUGHT} if isinstance(block, Text) else _DATA
    fields = _said(block.extra, taken)
    check(block.extra, NAME, fields, at, notes)
    return {**part, **fields}


def _said(extra: Extra, taken: frozenset[str]) -> Part:
    """Return the fields that only this API has from a block's `extra`, which holds such fields of all vendors. Fields
    in `taken` are left out."""
    return {key: value for key, value in camel(own(extra, NAME)).items() if key not in taken}


def _write_text(block: Text, at: At, notes: Notes) -> Part | None:
    if block.text:
        return _with({"text": block.text}, block, at, notes)
    if block.extra:
        notes.add(at, "an empty text with something beside it", "empty texts are left out")
    return None


def _write_thinking(block: Thinking, at: At, notes: Notes) -> Part | None:
    """Return a block of thinking as JSON if it comes from Gemini. That is so if the block's `extra`, which holds the
    fields that only one vendor has, marks the block as a thought or, for a block without text, has Gemini's signature.
    Other thinking is added to `notes` as lost, with the block's place `at`, and None is returned."""
    fields = _said(block.extra, _DATA)
    thought, signed = fields.get(_THOUGHT) is True, isinstance(fields.get(SIGNATURE), str)
    if not (thought and (block.text or signed)) and not (signed and not block.text and _THOUGHT not in fields):
        notes.add(at, "thinking that this API did not give", "another vendor thought it; it is left out")
        return None
    if block.signature is not None or block.encrypted is not None:
        notes.add(at, "the signature of thinking", "the API has its own, beside the thought")
    check(block.extra, NAME, fields, at, notes)
    return {"text": block.text, **fields}


def _write_call(call: ToolCall, at: At, notes: Notes) -> Part:
    arguments = plain(call.arguments)
    if not isinstance(arguments, dict):
        notes.add(at, "arguments that are not an object", 'they are sent as {"arguments": ...}')
        arguments = {"arguments": arguments}
    elif arguments != call.arguments:
        notes.add(at, "arguments that are not JSON", "the nearest JSON value is sent")
    fields, inner = _fields(call.extra, "functionCall", _CALL, at, notes)
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments, **inner}, **fields}


def _fields(extra: Extra, key: str, taken: frozenset[str], at: At, notes: Notes) -> tuple[Part, Part]:
    """Return, from a block's `extra`, the fields that only this API has, as two dictionaries. The first has those that
    belong into the part (the JSON object for the block). The second has those that belong into the object under the
    part's key `key`, such as `functionCall`, without the fields in `taken`, which Clew writes itself.

    Adds a loss to `notes`, with the block's place `at`, if not all of `extra` can be kept.
    """
    said = _said(extra, _DATA - {key})
    inside = said.pop(key, None)
    inner = beside(camel(inside), taken) if isinstance(inside, dict) else {}
    check(extra, NAME, {**said, key: inner} if inner else said, at, notes)
    return said, inner


def _write_media(block: Image | File, place: Place, at: At, notes: Notes) -> Part:
    written = _image(block) if isinstance(block, Image) else _file(block)
    if written is None or not (place == "user" or (place == "assistant" and "inlineData" in written[0])):
        notes.add(at, "an image or file the API cannot take there", "words are sent in its place")
        return {"text": shared.words_for(block)}
    part, back = written
    if back != block:
        kind = "an image" if isinstance(block, Image) else "a file"
        notes.add(at, f"a part of what is known of {kind}", "the API takes a type, and bytes or an address")
    return _with(part, block, at, notes)


def _image(block: Image) -> tuple[Part, Image] | None:
    """Return two forms of an image: the JSON with which it is sent, and the `Image` that Clew would make of that JSON
    when it reads it back. Return None if the image cannot be sent."""
    media_type = shared.image_type(block)
    if block.data and media_type in _IMAGES:
        data = {"mimeType": media_type, "data": encode_base64(block.data)}
        return {"inlineData": data}, Image(media_type, block.data, extra=block.extra)
    address = _address(block)
    if address is None:
        return None
    media_type = media_type if media_type in _IMAGES else _guessed(address)
    part = {"fileData": {"mimeType": media_type, "fileUri": address}}
    return part, _read_image_at(address, media_type, block.extra)


def _guessed(address: str) -> str:
    """Return the media type of the image at this URL, guessed from the ending of the URL. If the ending does not name a
    type of image that the API accepts, return `image/jpeg`."""
    try:
        guess = mimetypes.guess_type(address.partition("?")[0], strict=False)[0]
    except ValueError:  # the address of a bad host
        guess = None
    return guess if guess in _IMAGES else _ANY_IMAGE


def _address(block: Image | File) -> str | None:
    if shared.is_link(block.url) and not shared.is_gemini_file(block.url):
        return block.url
    return block.file_id if shared.is_gemini_file(block.file_id) else None


def _file(block: File) -> tuple[Part, File] | None:
    """Return two forms of a file: the JSON with which it is sent, and the `File` that Clew would make of that JSON when
    it reads it back. Return None if the file cannot be sent."""
    if block.data:
        media_type = _file_type(block)
        if media_type is None:
            return None
        data = {"mimeType": media_type, "data": encode_base64(block.data)}
        return {"inlineData": data}, File("", media_type, block.data, extra=block.extra)
    address = _address(block)
    if address is None:
        return None
    typed = shared.is_media_type(block.media_type) and not block.media_type.startswith("image/")
    part = {"fileData": {**({"mimeType": block.media_type} if typed else {}), "fileUri": address}}
    return part, _read_file_at(address, block.media_type if typed else "", block.extra)


def _file_type(block: File) -> str | None:
    """Return the media type with which to send a file's bytes, or None if the API reads no such files. A text of a type
    that the API does not know is sent as plain text."""
    media_type = block.media_type
    if _is_file_type(media_type):
        return media_type
    if not media_type.startswith("text/") and media_type != "application/json":
        return None
    try:
        (block.data or b"").decode()
    except UnicodeDecodeError:
        return None
    return _PLAIN


def _is_file_type(media_type: str) -> bool:
    known = media_type == _PDF or media_type in _TEXTS or media_type.startswith(_MEDIA)
    return known and shared.is_media_type(media_type)


def write_result(answer: Piece, name: str, notes: Notes) -> Part:
    """Return the result of a call of the function `name` as a part, a JSON object of a Gemini message. The API wants
    the result as an object, whose key says whether it is an output or an error. An error without content gets a
    sentence. Adds to `notes` what the API cannot express."""
    result, at = answer.result, answer.at
    values: list[Any] = []
    for block in result.content:
        values += _value(Piece(block, at), notes)
    if result.is_error and not values:
        notes.add(at, "an error result without a word", "the API demands one")
        values = ["The tool failed and said nothing."]
    bare = len(values) == 1 and not isinstance(values[0], list) and values[0] is not None
    said = values[0] if bare else values or ""
    fields, inner = _fields(result.extra, "functionResponse", _RESPONSE, at, notes)
    response = {"error" if result.is_error else "output": said}
    return {"functionResponse": {"id": result.call_id, "name": name, "response": response, **inner}, **fields}


def _value(piece: Piece, notes: Notes) -> list[Any]:
    """Return a list with one JSON value: a block of a tool result, as it is sent. The list is empty if the block is
    empty or cannot be sent. Adds to `notes` what the API cannot express."""
    block, at = piece
    if isinstance(block, Json):
        value = plain(block.value)
        if isinstance(value, str) or value != block.value:
            notes.add(at, "a JSON value", "a text comes back as text, and what is not JSON as the nearest value")
        check(block.extra, NAME, {}, at, notes)
        return [value] if value != "" else []
    part = write_part(piece, "result", notes)
    if part is None:
        return []
    fields = {key: value for key, value in part.items() if key != "text"}
    if fields:
        notes.add(at, "what a vendor said beside the block", f"{NAME} has no place for it there")
    return [part["text"]]


def moves(result: ToolResult, block: Block) -> bool:
    """Return whether a block must be sent after its tool result, not inside: an image or file, because older models
    accept only JSON in a result."""
    if not isinstance(block, (Image, File)):
        return False
    part = write_part(Piece(block, (0, None)), "user", Notes())
    return part is not None and "text" not in part


def reread(block: Opaque, inside: bool) -> Block | None:
    """Read the JSON of an opaque block again. The block was of an unknown kind when it was first read, but this version
    may know the kind. Return the block, or None if the JSON is invalid. `inside` (whether the block is in a tool
    result) is not used here."""
    value = plain(block.value)
    if not isinstance(value, dict) or is_empty(value):
        return None
    try:
        if camel(value).get("functionResponse") is not None:
            return read_result(value, "block", lambda given, name: given)
        return read_part(value, "block", lambda given: given)
    except InvalidInput:
        return None


def read_part(part: Part, where: str, call_id: Any) -> Block:
    """Return the block for a part (a JSON object of a Gemini message) that is not a function response. A part of an
    unknown kind or shape becomes an `Opaque` block, which holds it unchanged.

    `call_id` is a function that takes the id of a function call, which may be empty, and returns the id to use. Raises
    `InvalidInput` if a field is missing; `where` names the part in the error.
    """
    part = camel(part)
    kinds = _kinds(part, where)
    fields = _beside(part, kinds)
    if kinds == ["text"]:
        return _read_text(need(part, "text", str, where), fields, part)
    if kinds == ["functionCall"]:
        call = camel(need(part, "functionCall", dict, where))
        inner = beside(call, _CALL)
        arguments = plain(may(call, "args", dict, {}, where))
        extra = extra_of(NAME, {**fields, "functionCall": inner} if inner else fields)
        return ToolCall(call_id(may(call, "id", str, "", where)), need(call, "name", str, where), arguments, extra)
    block: Block | None = None
    if kinds == ["inlineData"]:
        block = _read_data(camel(need(part, "inlineData", dict, where)), extra_of(NAME, fields))
    elif kinds == ["fileData"]:
        block = _read_address(camel(need(part, "fileData", dict, where)), extra_of(NAME, fields))
    return block or Opaque(NAME, plain(part))


def _kinds(part: Part, where: str) -> list[str]:
    """Return a list with the one key of a part (a JSON object of a Gemini message) that holds its data, such as `text`.
    The list is empty if there is no such key. Raises `InvalidInput` if there are several; `where` names the part in the
    error."""
    kinds = [key for key in _DATA if part.get(key) is not None]
    if len(kinds) > 1:
        raise InvalidInput(f"{where}: it has more than one kind of data: {', '.join(sorted(kinds))}")
    return kinds


def _beside(part: Part, kinds: list[str]) -> Part:
    """Return the fields of a part (a JSON object of a Gemini message) without its data. `kinds` has the key of the
    data, such as `text`; if it is empty, the kind of the data is unknown, and the data stay in the result. The field
    `thoughtSignature` is returned in the usual form of base64, and `thought` is left out if it is false."""
    fields = beside(part, _DATA if kinds else ())
    if fields.get(_THOUGHT) is False:
        del fields[_THOUGHT]
    if isinstance(fields.get(SIGNATURE), str):
        fields[SIGNATURE] = _usual_base64(fields[SIGNATURE])
    return fields


def _usual_base64(text: str) -> str:
    """Return a base64 text in the usual alphabet. The vendor's SDK writes the other alphabet of base64, which is made
    for URLs, and its API accepts both. A text that is not base64 is returned unchanged."""
    data = _decoded(text)
    return text if data is None else encode_base64(data)


def _decoded(text: Any) -> bytes | None:
    """Return the bytes of a base64 text, in the usual alphabet or in the one for URLs, with or without padding. Return
    None if the text is not valid."""
    if not isinstance(text, str):
        return None
    usual = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        data = base64.b64decode(usual + "=" * (-len(usual) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if decode_base64(usual + "=" * (-len(usual) % 4)) is not None else None


def _read_text(text: str, fields: Part, part: Part) -> Text | Thinking | Opaque:
    """Return the block for a part (a JSON object of a Gemini message) with the text `text`. `fields` are the other
    fields of the part. The block is `Thinking` if the part is marked as a thought, or if it has a signature and an
    empty text. It is `Opaque`, which holds the part unchanged, if the mark is neither true nor false, or if a thought
    has neither text nor signature. Otherwise it is `Text`."""
    if fields.get(_THOUGHT) is True:
        is_known = bool(text) or isinstance(fields.get(SIGNATURE), str)
        return Thinking(text, extra=extra_of(NAME, fields)) if is_known else Opaque(NAME, plain(part))
    if _THOUGHT in fields:
        return Opaque(NAME, plain(part))
    if not text and isinstance(fields.get(SIGNATURE), str):
        return Thinking(extra=extra_of(NAME, fields))
    return Text(text, extra_of(NAME, fields))


def _read_data(data: Part, extra: Extra) -> Image | File | None:
    media_type, content = data.get("mimeType"), _decoded(data.get("data"))
    if not exactly(data, "mimeType", "data") or not content or not isinstance(media_type, str):
        return None
    if media_type in _IMAGES:
        return Image(media_type, content, extra=extra)
    return File("", media_type, content, extra=extra) if _is_file_type(media_type) else None


def _read_address(data: Part, extra: Extra) -> Image | File | None:
    address, media_type = data.get("fileUri"), data.get("mimeType")
    if not isinstance(address, str) or not (shared.is_gemini_file(address) or shared.is_link(address)):
        return None
    if exactly(data, "fileUri"):
        return _read_file_at(address, "", extra)
    if not exactly(data, "mimeType", "fileUri") or not isinstance(media_type, str):
        return None
    if media_type in _IMAGES:
        return _read_image_at(address, media_type, extra)
    if media_type.startswith("image/") or not shared.is_media_type(media_type):
        return None
    return _read_file_at(address, media_type, extra)


def _read_image_at(address: str, media_type: str, extra: Extra) -> Image:
    if shared.is_gemini_file(address):
        return Image(media_type, file_id=address, extra=extra)
    return Image(media_type, url=address, extra=extra)


def _read_file_at(address: str, media_type: str, extra: Extra) -> File:
    if shared.is_gemini_file(address):
        return File("", media_type, file_id=address, extra=extra)
    return File("", media_type, url=address, extra=extra)


def read_result(part: Part, where: str, call_id: Any) -> ToolResult:
    """Return the tool result in a part (a JSON object of a Gemini message) that is a function response. `call_id` is a
    function that takes the id in the part, which may be empty, and the function's name, and returns the id to use.
    Raises `InvalidInput` if a field is missing; `where` names the part in the error."""
    part = camel(part)
    kinds = _kinds(part, where)
    said = camel(need(part, "functionResponse", dict, where))
    response = plain(may(said, "response", dict, {}, where))
    is_error = response.keys() == {"error"}
    if response.keys() == {"output"} or is_error:
        content = _values(response["error" if is_error else "output"])
    else:
        content = (Json(response),) if response else ()
    for inner in may(said, "parts", list, [], where):
        if not isinstance(inner, dict):
            raise InvalidInput(f"{where}: an element of 'parts' is not an object")
        block = read_part(inner, where, lambda given: given)
        content += (block,) if isinstance(block, (Image, File)) else (Opaque(NAME, plain(inner)),)
    fields, inside = _beside(part, kinds), beside(said, _RESPONSE)
    extra = extra_of(NAME, {**fields, "functionResponse": inside} if inside else fields)
    given = call_id(may(said, "id", str, "", where), may(said, "name", str, "", where))
    return ToolResult(given, content, is_error, extra)


def _values(output: Any) -> tuple[Text | Json | Image | File | Opaque, ...]:
    values = output if isinstance(output, list) else [output]
    return tuple(Text(value) if isinstance(value, str) else Json(value) for value in values if value != "")
