"""Reading what a client sends: never more than the limit, and always as the struct that is expected."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from litestar import Request

from clew.checkpointers._http_wire import JSON, MSGPACK, OCTETS
from clew.errors import InvalidInput
from clew.server.failures import Refused

__all__ = ["decoded", "octets", "whole"]

T = TypeVar("T")

AnyRequest = Request[Any, Any, Any]


async def whole(request: AnyRequest, limit: int) -> bytes | bytearray:
    """The body, refused as soon as it is known to be larger than this."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit, int(length))
    body: bytes | bytearray = b""
    async for part in request.stream():
        if not body:
            body = part
            continue
        if isinstance(body, bytes):
            body = bytearray(body)
        body += part
        if len(body) > limit:
            raise _too_large(limit)
    if len(body) > limit:
        raise _too_large(limit, len(body))
    return body


async def decoded(request: AnyRequest, kind: type[T], limit: int, *, json: bool = True) -> T:
    """The body as this struct: msgpack, or JSON where that can hold it."""
    form = _form(request)
    if form != MSGPACK and not (json and form == JSON):
        raise InvalidInput(f"a body of {form or 'no type'}; send {MSGPACK}{f' or {JSON}' if json else ''}")
    body = await whole(request, limit)
    try:
        if form == JSON:
            return msgspec.json.decode(body, type=kind)
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as error:
        raise InvalidInput(f"the body is no {kind.__name__}: {error}") from None


async def octets(request: AnyRequest, limit: int) -> bytes:
    """The body as plain bytes."""
    if (form := _form(request)) != OCTETS:
        raise InvalidInput(f"a body of {form or 'no type'}; send {OCTETS}")
    return bytes(await whole(request, limit))


def _form(request: AnyRequest) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _too_large(limit: int, size: int | None = None) -> Refused:
    found = f"{size} bytes" if size is not None else "more"
    return Refused("too_large", f"the limit here is {limit} bytes, and the body has {found}. Nothing was written.")
