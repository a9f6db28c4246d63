"""JSON values, JSON texts and data URLs: what goes in comes out the same, or is told apart."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from clew.errors import InvalidInput
from clew.messages.dialects.losses import At, Notes
from clew.messages.model import File, Image, ToolCall

_DATA_URL = re.compile(r"data:([A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+);base64,([A-Za-z0-9+/=]*)", re.ASCII)
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+", re.ASCII)


def plain(value: Any) -> Any:
    """A copy that is JSON and nothing else, so that a payload can be changed without changing the conversation.

    What JSON has no word for becomes the nearest it has: a number that is none becomes null, an integer that no store
    could keep a float, bytes become base64.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else _as_float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return str(value)


def _as_float(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def dumps(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def arguments_text(arguments: Any) -> str:
    """The arguments of a call as the text that OpenAI keeps them in. A text that is no JSON is that text itself."""
    if isinstance(arguments, str) and not _parsed(arguments)[0]:
        return arguments
    return dumps(arguments)


def read_arguments(text: str) -> Any:
    """The value of a model's arguments; the text itself if it is no JSON, or JSON that no store could keep."""
    good, value = _parsed(text)
    return value if good else text


def _parsed(text: str) -> tuple[bool, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
        msgspec.msgpack.encode(value)
        good = plain(value) == value
    except (ValueError, OverflowError, RecursionError):
        return False, None
    return good, value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same to the letter: 1, 1.0 and true are three."""
    return dumps(one) == dumps(other)


def decode_base64(text: Any) -> bytes | None:
    """The bytes, or None if the text is not exactly what they would be written as."""
    if not isinstance(text, str):
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if encode_base64(data) == text else None


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def is_media_type(text: str) -> bool:
    return _MEDIA_TYPE.fullmatch(text) is not None


def data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{encode_base64(data)}"


def read_data_url(url: Any) -> tuple[str, bytes] | None:
    """Media type and bytes of a data URL, or None if `data_url` would not write it just so."""
    match = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    data = decode_base64(match[2]) if match else None
    return (match[1], data) if match and data is not None else None


_T = TypeVar("_T")
_KINDS = {str: "a text", dict: "an object", list: "a list", bool: "true or false"}


def need(part: dict[str, Any], key: str, kind: type[_T], where: str) -> _T:
    """A key that must be there. The error never shows the value: it may be a prompt."""
    value = part.get(key)
    if value is None:
        raise InvalidInput(f"{where}: the key {key!r} is missing")
    return expect(value, kind, f"{where}: the value of {key!r}")


def may(part: dict[str, Any], key: str, kind: type[_T], default: _T, where: str) -> _T:
    """A key that may be absent or null."""
    value = part.get(key)
    return default if value is None else expect(value, kind, f"{where}: the value of {key!r}")


def expect(value: Any, kind: type[_T], what: str) -> _T:
    if not isinstance(value, kind):
        raise InvalidInput(f"{what} is not {_KINDS[kind]}")
    return value


def parts_of(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Content as vendors write it: one text, or a list of objects that each name their type."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(expect(content, list, f"{where}: the value of 'content'")):
        spot = f"{where}, part {number}"
        need(expect(part, dict, spot), "type", str, spot)
        parts.append(part)
    return parts


def exactly(part: dict[str, Any], *keys: str) -> bool:
    """Whether an object has these keys and no other; null counts as absent."""
    return {key for key, value in part.items() if value is not None} == set(keys)


Extra = dict[str, Any] | None


def own(extra: Extra, dialect: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """The fields of this dialect that may be put beside those that the translator writes itself."""
    fields = extra.get(dialect) if extra else None
    if not isinstance(fields, dict):
        return {}
    return beside(fields, taken)


def beside(part: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """The fields of a vendor's object that canonical blocks have no word for. Null says nothing and is left out."""
    fields = {key: plain(value) for key, value in part.items() if isinstance(key, str) and key not in taken}
    return {key: value for key, value in fields.items() if value is not None}


def extra_of(dialect: str, fields: dict[str, Any]) -> Extra:
    return {dialect: fields} if fields else None


def check(extra: Extra, dialect: str, kept: dict[str, Any], at: At, notes: Notes) -> None:
    """Note it if a block's extra is not just what comes back when `kept` was said."""
    if extra and extra != extra_of(dialect, kept):
        notes.add(at, "what a vendor said beside the block", f"{dialect} has no place for it there")


IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""All three APIs take these four and no other."""
_ALIASES = {"image/jpg": "image/jpeg"}
_LINK = re.compile(r"https?://\S+", re.IGNORECASE)
_ANTHROPIC_FILE = "file_"

Form = Literal["data", "url", "file_id"]


def image_type(image: Image) -> str:
    return _ALIASES.get(image.media_type, image.media_type)


def is_image_type(media_type: object) -> bool:
    return isinstance(media_type, str) and media_type in IMAGE_TYPES


def image_form(image: Image) -> Form | None:
    """The bytes if they can be sent, else the link, else the vendor's file. None if there is nothing to send."""
    if image.data and image_type(image) in IMAGE_TYPES:
        return "data"
    return _other_form(image)


def file_form(file: File) -> Form | None:
    return "data" if file.data else _other_form(file)


def _other_form(block: Image | File) -> Form | None:
    if is_link(block.url):
        return "url"
    return "file_id" if block.file_id else None


def is_link(url: object) -> bool:
    return isinstance(url, str) and _LINK.fullmatch(url) is not None


def is_anthropic_file(file_id: object) -> bool:
    """Files belong to the vendor they were uploaded to. The two vendors' ids begin differently: `file_` and `file-`."""
    return isinstance(file_id, str) and file_id.startswith(_ANTHROPIC_FILE)


def is_openai_file(file_id: object) -> bool:
    return isinstance(file_id, str) and file_id != "" and not file_id.startswith(_ANTHROPIC_FILE)


def words_for(block: Image | File) -> str:
    """What the model reads in place of something it cannot be shown."""
    kind = "image" if isinstance(block, Image) else "file"
    name = block.name if isinstance(block, File) else ""
    about = ", ".join(part for part in (name, block.media_type, block.url or "") if part)
    return f"[{kind} not shown: {about}]" if about else f"[{kind} not shown]"


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
