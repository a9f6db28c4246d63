"""What a tool returned, or raised, as the content of a result for the model."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import traceback
from collections.abc import Collection, Mapping, Sequence, Set, ValuesView
from contextlib import suppress
from typing import Any

import msgspec

from clew.errors import InvalidInput
from clew.messages import File, Image, Json, Opaque, Text, ToolResult
from clew.tools import _pydantic
from clew.tools._values import json_like

__all__ = ["error_place", "error_result", "error_text", "to_result"]

log = logging.getLogger("clew.tools")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_ONLY_AN_ADDRESS = re.compile(r"<.* at 0x[0-9a-fA-F]+.*>", re.DOTALL)
_LEAST, _MOST, _DEEPEST = -(2**63), 2**64, 100
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ToolResult).decode
_BLOCKS = (Text, Json, Image, File, Opaque)
_LONGEST_ERROR = 4000
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
Content = tuple[Text | Json | Image | File | Opaque, ...]


def to_result(value: Any, call_id: str, tool: str) -> ToolResult:
    """Turn any value that a tool returned into a result that can be stored.

    This never fails: by now the effect has happened, and the model must hear of it. Structured data becomes JSON. An object
    that has no text form is told of by its type, in words that do not invite the model to call again, and a warning for the
    developer goes to the log.
    """
    reading = _Reading()
    try:
        if isinstance(value, ToolResult):
            result = msgspec.structs.replace(value, call_id=call_id, content=reading.content(value.content or ""))
        else:
            result = ToolResult(call_id, reading.content(value))
        _decode(_encode(result))  # a block with a field of the wrong type can be written, and makes the log unreadable
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        what = "block that cannot be stored"
        reading.unreadable.append(f"{what} ({error})")
        is_error = isinstance(value, ToolResult) and value.is_error is True
        result = ToolResult(call_id, (Text(f"The tool ran, and returned {_no_text_form(what)}."),), is_error=is_error)
    if reading.unreadable:
        log.warning(
            "tool %s returned a %s, which has no text form: the model is told its type alone. Return text, bytes, JSON-like "
            "data, a dataclass, a msgspec Struct, a pydantic model or blocks of clew.messages.",
            tool,
            ", a ".join(dict.fromkeys(reading.unreadable)),
        )
    return result


class _Reading:
    """One value on its way to the model, and what in it could not be read."""

    def __init__(self) -> None:
        self.unreadable: list[str] = []

    def content(self, value: Any) -> Content:
        if value is None:
            return (Text("done"),)
        if isinstance(value, (list, tuple)) and any(isinstance(part, _BLOCKS) for part in value):
            return tuple(block for part in value for block in self.content(part))
        if isinstance(value, Json):
            return (msgspec.structs.replace(value, value=self._json_or_text(value.value)),)
        if isinstance(value, Text) and isinstance(value.text, str):
            return (msgspec.structs.replace(value, text=_storable(value.text)),)
        if isinstance(value, _BLOCKS):
            return (value,)
        if isinstance(value, str):
            return (Text(_storable(str(value))),)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return (_bytes_block(bytes(value)),)
        plain = self._json_or_text(value)
        if isinstance(plain, str):  # a date, an enum's value, a path: words
            return (Text(f"The tool ran, and returned {plain}." if self.unreadable else plain),)
        return (Json(plain),)

    def _json_or_text(self, value: Any) -> Any:
        """The value in JSON's types; as words if something about it does not fit there."""
        before = len(self.unreadable)
        try:
            return _fit(msgspec.to_builtins(value, str_keys=True, enc_hook=self._as_json), 0)
        except (TypeError, ValueError, OverflowError, RecursionError, InvalidInput):
            del self.unreadable[before:]
            return self._words(value)

    def _as_json(self, value: Any) -> Any:
        """What msgspec does not know, in types that it knows."""
        with suppress(NotImplementedError):
            return _pydantic.dump(value)
        if isinstance(value, Mapping):
            return dict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if isinstance(value, BaseException):
            return error_text(value)
        if isinstance(value, os.PathLike):
            return os.fsdecode(value)
        if callable(as_list := getattr(value, "tolist", None)) and not isinstance(value, type):  # of numpy, and alike
            with suppress(Exception):
                return as_list()
        return list(value) if _is_list(value) else self._words(value)

    def _words(self, value: Any) -> str:
        """An object in its own words. If it has none but its address, the type is all there is to say."""
        kind = type(value)
        try:
            text = str(value)
        except Exception:  # noqa: BLE001  # a user's __str__ may do anything
            return self._unreadable(kind)
        if _ONLY_AN_ADDRESS.fullmatch(text):
            return self._unreadable(kind)
        return _storable(_ADDRESS.sub("", text))

    def _unreadable(self, kind: type) -> str:
        self.unreadable.append(kind.__qualname__)
        return _no_text_form(kind.__qualname__)


def _is_list(value: Any) -> bool:
    """Whether its members are all there is to an object. Those of a table are its columns' names, and those of an e-mail its
    headers' names: such an object, which is no sequence or set and has words of its own, is told in these."""
    if isinstance(value, Sequence | Set | ValuesView):
        return True
    has_words = any(vars(kind).keys() & {"__str__", "__repr__"} for kind in type(value).__mro__[:-1])
    return isinstance(value, Collection) and not isinstance(value, type) and not has_words


def _no_text_form(what: str) -> str:
    return f"a {what}, which has no text form"


def _fit(value: Any, depth: int) -> Any:
    """These builtins with what no log can hold as text: integers beyond 64 bits, half a surrogate pair."""
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, list):
        return [_fit(inner, depth + 1) for inner in value]
    if isinstance(value, dict):
        return {_storable(key): _fit(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, int) and not _LEAST <= value < _MOST:
        return str(value)
    return json_like(value, "the result")


def _bytes_block(data: bytes) -> Image | File:
    for start, media_type in _MAGIC.items():
        if data.startswith(start):
            return Image(media_type, data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Image("image/webp", data)
    return File("", "application/pdf" if data.startswith(b"%PDF-") else "application/octet-stream", data)


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
