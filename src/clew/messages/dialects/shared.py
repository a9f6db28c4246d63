"""Functions that the translations to all vendors' formats use. They convert JSON values, check payloads, keep vendors'
extra fields, and handle images, files and the arguments of calls."""

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

__all__ = [
    "IMAGE_TYPES",
    "RAW",
    "Extra",
    "Form",
    "arguments_text",
    "beside",
    "check",
    "data_url",
    "decode_base64",
    "dumps",
    "encode_base64",
    "exactly",
    "expect",
    "extra_of",
    "file_form",
    "image_form",
    "image_type",
    "is_anthropic_file",
    "is_gemini_file",
    "is_image_type",
    "is_link",
    "is_media_type",
    "is_openai_file",
    "may",
    "need",
    "own",
    "parts_of",
    "plain",
    "read_arguments",
    "read_call_arguments",
    "read_data_url",
    "same",
    "words_for",
    "write_arguments",
]

_DATA_URL = re.compile(r"data:([A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+);base64,([A-Za-z0-9+/=]*)", re.ASCII)
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+", re.ASCII)


def plain(value: Any) -> Any:
    """Return a deep copy of a value, made of JSON values only. So changing the copy never changes the conversation.

    A value that JSON cannot express is replaced by a similar one: NaN and infinity become null, integers beyond 64 bits
    become floats, and bytes become base64.
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
    """Return the value as compact JSON text."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def arguments_text(arguments: Any) -> str:
    """Return a call's arguments as JSON text, as OpenAI's APIs want them.

    If they are a text that is not valid JSON, as a model may write by mistake, it is returned unchanged.
    """
    if isinstance(arguments, str) and not _parsed(arguments)[0]:
        return arguments
    return dumps(arguments)


def read_arguments(text: str) -> Any:
    """Return the value of a call's JSON arguments.

    Returns the text itself if it is not valid JSON or holds a value that no store could keep.
    """
    good, value = _parsed(text)
    return value if good else text


def _parsed(text: str) -> tuple[bool, Any]:
    """Return two things: whether the text is valid JSON that a store can keep, and its value. The value is meaningless
    if the first is False."""
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
    """Return whether two values are written as the same JSON text. So 1, 1.0 and true all differ."""
    return dumps(one) == dumps(other)


def decode_base64(text: Any) -> bytes | None:
    """Return the bytes of a base64 text.

    Returns None if the text is not valid, or if encoding the bytes again would give another text.
    """
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
    """Return the media type and the bytes of a data URL.

    Returns None if the URL is not valid, or if `data_url` would write it differently.
    """
    match = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    data = decode_base64(match[2]) if match else None
    return (match[1], data) if match and data is not None else None


_T = TypeVar("_T")
_KINDS = {str: "a text", dict: "an object", list: "a list", bool: "true or false"}


def need(part: dict[str, Any], key: str, kind: type[_T], where: str) -> _T:
    """Return `part[key]`. Raises `InvalidInput` if it is absent, null or not of type `kind`.

    `where` names the object in the error. The error never shows the value, which may be a prompt.
    """
    value = part.get(key)
    if value is None:
        raise InvalidInput(f"{where}: the key {key!r} is missing")
    return expect(value, kind, f"{where}: the value of {key!r}")


def may(part: dict[str, Any], key: str, kind: type[_T], default: _T, where: str) -> _T:
    """Return `part[key]`, or `default` if it is absent or null. Raises `InvalidInput` if it is not of type `kind`.

    `where` names the object in the error.
    """
    value = part.get(key)
    return default if value is None else expect(value, kind, f"{where}: the value of {key!r}")


def expect(value: Any, kind: type[_T], what: str) -> _T:
    """Return the value if it is of type `kind`. Otherwise raise `InvalidInput`; the text `what` names the value in the
    error."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{what} is not {_KINDS[kind]}")
    return value


def parts_of(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Check a vendor's message content and return it: a text, or a list of objects that each have a "type".

    Raises `InvalidInput` if it is neither; `where` names the message in the error.
    """
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(expect(content, list, f"{where}: the value of 'content'")):
        spot = f"{where}, part {number}"
        need(expect(part, dict, spot), "type", str, spot)
        parts.append(part)
    return parts


def exactly(part: dict[str, Any], *keys: str) -> bool:
    """Return whether an object has exactly these keys and no others. A key whose value is null counts as absent."""
    return {key for key, value in part.items() if value is not None} == set(keys)


Extra = dict[str, Any] | None


def own(extra: Extra, dialect: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields that `extra` has for this dialect, the format of a vendor's API. `extra` is an attribute of a
    block: the fields that only one vendor's API has, by the name of the dialect.

    Keys in `taken` are left out, because the caller writes them itself.
    """
    fields = extra.get(dialect) if extra else None
    if not isinstance(fields, dict):
        return {}
    return beside(fields, taken)


def beside(part: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Return a copy of a vendor's JSON object without nulls and without the keys in `taken`, for which Clew has its own
    fields."""
    fields = {key: plain(value) for key, value in part.items() if isinstance(key, str) and key not in taken}
    return {key: value for key, value in fields.items() if value is not None}


def extra_of(dialect: str, fields: dict[str, Any]) -> Extra:
    """Return these fields, which only one vendor's API has, in the form of a block's `extra`: a dictionary with the
    name of the vendor's format, the dialect, as its only key.

    Returns None if there are no fields.
    """
    return {dialect: fields} if fields else None


def check(extra: Extra, dialect: str, kept: dict[str, Any], at: At, notes: Notes) -> None:
    """Add a loss to `notes` if a block would have another `extra` after it is written in this dialect (the format of a
    vendor's API) and read back. `extra` are the block's fields that only one vendor's API has.

    `kept` are the fields that were written, and `at` is the block's place in the conversation.
    """
    if extra and extra != extra_of(dialect, kept):
        notes.add(at, "what a vendor said beside the block", f"{dialect} has no place for it there")


IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The media types of images that the APIs of Anthropic and OpenAI accept."""
_ALIASES = {"image/jpg": "image/jpeg"}
_LINK = re.compile(r"https?://\S+", re.IGNORECASE)
_ANTHROPIC_FILE = "file_"
_GEMINI_FILES = ("https://generativelanguage.googleapis.com/", "files/", "gs://")

Form = Literal["data", "url", "file_id"]


def image_type(image: Image) -> str:
    """Return the image's media type, with `image/jpg` corrected to `image/jpeg`."""
    return _ALIASES.get(image.media_type, image.media_type)


def is_image_type(media_type: object) -> bool:
    return isinstance(media_type, str) and media_type in IMAGE_TYPES


def image_form(image: Image) -> Form | None:
    """Return the form in which to send an image: "data" if it has bytes of a type that Anthropic and OpenAI accept,
    else "url" if it has a valid URL, else "file_id" if it has the id of an uploaded file, else None."""
    if image.data and image_type(image) in IMAGE_TYPES:
        return "data"
    return _other_form(image)


def file_form(file: File) -> Form | None:
    """Return the form in which to send a file: "data" if it has bytes, else "url" if it has a valid URL, else "file_id"
    if it has the id of an uploaded file, else None."""
    return "data" if file.data else _other_form(file)


def _other_form(block: Image | File) -> Form | None:
    if is_link(block.url):
        return "url"
    return "file_id" if block.file_id else None


def is_link(url: object) -> bool:
    return isinstance(url, str) and _LINK.fullmatch(url) is not None


def is_anthropic_file(file_id: object) -> bool:
    """Return whether this is the id of a file uploaded to Anthropic. Ids of Anthropic begin with `file_`, and ids of
    OpenAI with `file-`."""
    return isinstance(file_id, str) and file_id.startswith(_ANTHROPIC_FILE)


def is_gemini_file(file_id: object) -> bool:
    """Return whether this is the address of a file that was uploaded to Google."""
    return isinstance(file_id, str) and file_id.startswith(_GEMINI_FILES)


def is_openai_file(file_id: object) -> bool:
    return isinstance(file_id, str) and file_id != "" and not file_id.startswith((_ANTHROPIC_FILE, *_GEMINI_FILES))


def words_for(block: Image | File) -> str:
    """Return a text that names this image or file. It is sent to the model in place of the image or file, if that
    cannot be sent."""
    kind = "image" if isinstance(block, Image) else "file"
    name = block.name if isinstance(block, File) else ""
    about = ", ".join(part for part in (name, block.media_type, block.url or "") if part)
    return f"[{kind} not shown: {about}]" if about else f"[{kind} not shown]"


RAW = "arguments"
"""Key in the extra fields of a tool call.

Its value is the JSON text of the arguments as the model wrote it. It is kept only if Clew would write the arguments
differently.
"""


def write_arguments(call: ToolCall, fields: dict[str, Any], at: At, notes: Notes) -> str:
    """Return a tool call's arguments as JSON text, for a request.

    `fields` are those fields of the call that only this vendor's API has. Under the key `RAW` they may hold the text
    that the model itself wrote. If that text still gives the call's arguments, it is returned unchanged. Otherwise the
    arguments are written anew, and `RAW` is removed from `fields`. If the arguments are not JSON values, a loss is
    added to `notes`, with `at`, the call's place in the conversation.
    """
    text = arguments_text(call.arguments)
    raw = fields.pop(RAW, None)
    if isinstance(raw, str) and raw != text and same(read_arguments(raw), call.arguments):
        fields[RAW] = raw
        return raw
    if not same(read_arguments(text), call.arguments) or read_arguments(text) != call.arguments:
        notes.add(at, "arguments that are not JSON", "the nearest JSON value is sent")
    return text


def read_call_arguments(value: Any, fields: dict[str, Any]) -> Any:
    """Return the value of a tool call's arguments, which a payload holds as JSON text.

    If Clew would write that text differently, it is also stored in `fields` under `RAW`, so that it can be sent back
    unchanged.
    """
    if not isinstance(value, str):
        return "" if value is None else plain(value)
    arguments = read_arguments(value)
    if arguments_text(arguments) != value:
        fields[RAW] = value
    return arguments
