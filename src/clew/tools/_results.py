"""What a tool returned, or raised, as the content of a result for the model."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.messages import File, Image, Json, Opaque, Text, ToolResult
from clew.tools import _pydantic
from clew.tools._values import json_like

__all__ = ["error_place", "error_result", "error_text", "to_result"]

_BLOCKS = (Text, Json, Image, File, Opaque)
_LONGEST_ERROR = 4000
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
Content = tuple[Text | Json | Image | File | Opaque, ...]


def to_result(value: Any, call_id: str) -> ToolResult:
    """Any value a tool can return. It never fails: by now the effect has happened, and the model must hear of it."""
    if isinstance(value, ToolResult):
        return msgspec.structs.replace(value, call_id=call_id)
    return ToolResult(call_id, _content(value))


def _content(value: Any) -> Content:
    if value is None:
        return (Text("done"),)
    if isinstance(value, (list, tuple)) and any(isinstance(part, _BLOCKS) for part in value):
        return tuple(block for part in value for block in _content(part))
    if isinstance(value, _BLOCKS):
        return (value,)
    if isinstance(value, str):
        return (Text(_storable(str(value))),)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return (_bytes_block(bytes(value)),)
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_as_json)
        return (Json(json_like(plain, "the result")),)
    except (TypeError, ValueError, OverflowError, RecursionError, InvalidInput):
        return (Text(_storable(_said(value))),)


def _bytes_block(data: bytes) -> Image | File:
    for start, media_type in _MAGIC.items():
        if data.startswith(start):
            return Image(media_type, data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Image("image/webp", data)
    return File("", "application/pdf" if data.startswith(b"%PDF-") else "application/octet-stream", data)


def _as_json(value: Any) -> Any:
    try:
        return _pydantic.dump(value)
    except NotImplementedError:
        if isinstance(value, Mapping):
            return dict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.asdict(value)
        return _said(value)


def _said(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # a user's __str__ may do anything
        return f"a {type(value).__qualname__}"


def error_result(message: str, call_id: str) -> ToolResult:
    return ToolResult(call_id, (Text(_storable(message)),), is_error=True)


def error_text(error: BaseException) -> str:
    """An exception in the words that the model is given: its type and message, never a traceback, whose lines may hold
    what the model must not see."""
    if isinstance(error, BaseExceptionGroup):
        text = "; ".join(error_text(inner) for inner in error.exceptions)
    else:
        said = _said(error)
        text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text if len(text) <= _LONGEST_ERROR else text[:_LONGEST_ERROR] + " …"


def error_place(error: BaseException) -> str:
    """An exception as a log line may tell of it: its type and where it was raised, for its words may hold content."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def _storable(text: str) -> str:
    """Half a surrogate pair has no UTF-8, so no store could keep it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
