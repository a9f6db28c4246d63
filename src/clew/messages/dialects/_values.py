"""JSON values, JSON texts and data URLs: what goes in comes out the same, or is told apart."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Any

import msgspec

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
