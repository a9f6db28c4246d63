"""Functions that read the body, the query and the entity tags of a request, and encode the body of a response. A body is
read up to a given limit and no further, and the type of each value is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import msgspec

from clew.checkpointers.http.protocol import JSON, MSGPACK, OCTETS
from clew.errors import InvalidInput
from clew.server.failures import Refused
from clew.server.request import Request
from clew.server.response import Response

__all__ = [
    "IncomingAppend",
    "IncomingBlobs",
    "IncomingDigests",
    "IncomingSweep",
    "decoded",
    "encoded",
    "numbers",
    "octets",
    "parsed",
    "tags",
    "whole",
]


T = TypeVar("T")

_SLOWEST = 2**14
"""Bytes per second. A body that arrives at least at this speed is never too slow."""


class IncomingAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that appends to a thread, as it is first decoded: the head stays encoded, and the number of
    frames and refs (digests of blobs) is limited. To decode a great number of small values would keep the service busy
    for seconds."""

    at: Annotated[int, msgspec.Meta(ge=0)]
    head: msgspec.Raw
    frames: Annotated[list[bytes], msgspec.Meta(max_length=2**19)]
    refs: Annotated[list[str], msgspec.Meta(max_length=2**17)] = []


class IncomingBlobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that stores several blobs, by their digests. Their number is limited, so that they can be
    checked in a moment."""

    blobs: Annotated[dict[str, bytes], msgspec.Meta(max_length=2**14)]


class IncomingDigests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that lists digests of blobs. Whether each text is a digest is checked by the store, because
    that takes less time than a regular expression here."""

    digests: Annotated[list[str], msgspec.Meta(max_length=2**17)]


class IncomingSweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that deletes blobs: their digests, and for how many microseconds a blob must not have been
    touched. A blob is touched when it is stored, referred to by an append, or asked for as missing."""

    digests: Annotated[list[str], msgspec.Meta(max_length=2**17)]
    untouched_for_micros: Annotated[int, msgspec.Meta(ge=0)]


async def decoded(request: Request, kind: type[T], limit: int, *, json: bool = True) -> T:
    """Read a request body and decode it as the type `kind`, from msgpack or, if `json` is set, from JSON.

    Raises `InvalidInput` for a body of another media type or with other content, and `Refused` for one of more than
    `limit` bytes.
    """
    form = _media_type(request)
    if form != MSGPACK and not (json and form == JSON):
        raise InvalidInput(f"a body of {form or 'no type'}; send {MSGPACK}{f' or {JSON}' if json else ''}")
    return parsed(kind, await whole(request, limit), form)


def parsed(kind: type[T], body: bytes | bytearray | msgspec.Raw, form: str = MSGPACK) -> T:
    """Decode a request body, or a part of one, as the type `kind`, and return the value. `form` is the media type:
    msgpack or JSON. Raises `InvalidInput` if the bytes are not a valid `kind`."""
    try:
        if form == JSON:
            return msgspec.json.decode(body, type=kind)
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, OverflowError, ValueError) as error:
        raise InvalidInput(f"the body is not a valid {kind.__name__.removeprefix('Incoming')}: {error}") from None


async def octets(request: Request, limit: int) -> bytes:
    """Read a request body as plain bytes. Raises `InvalidInput` if the request does not state the media type of plain
    bytes, and `Refused` if the body has more than `limit` bytes."""
    if (form := _media_type(request)) != OCTETS:
        raise InvalidInput(f"a body of {form or 'no type'}; send {OCTETS}")
    return bytes(await whole(request, limit))


async def whole(request: Request, limit: int) -> bytes | bytearray:
    """Read a whole request body. Raises `Refused` as soon as it is known to have more than `limit` bytes, if it comes
    too slowly, or if the service has no memory for it; and `InvalidInput` if the client goes away before its end."""
    begun = asyncio.get_running_loop().time()
    allowed = request.settings.body_timeout
    try:
        async with asyncio.timeout_at(begun + allowed) as timer:
            return await _received(request, limit, lambda size: timer.reschedule(begun + allowed + size / _SLOWEST))
    except TimeoutError:
        raise Refused(
            "too_slow",
            f"the body did not arrive: {allowed:g} s are allowed, and one more for each {_SLOWEST} bytes. Nothing was "
            "written.",
        ) from None


async def _received(request: Request, limit: int, moved: Callable[[int], None]) -> bytes | bytearray:
    """Read a whole request body and return it. Calls `moved` with the number of bytes received so far whenever more is
    to come, so that the caller can allow more time. Raises `Refused` if the body has more than `limit` bytes or the
    service has no memory for it, and `InvalidInput` if the client goes away before its end."""
    length = request.headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    body: bytes | bytearray = b""
    more = True
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise InvalidInput("the client went away before it had sent all of its request")
        part = message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) + len(part) > limit:
            raise _too_large(limit)
        if request.room is not None:
            request.room.take(request.token, len(part))
        if more:
            moved(len(body) + len(part))
        if not body:
            body = bytearray(part) if more else part
        else:
            body += part
    return body


def _media_type(request: Request) -> str:
    return request.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


def _too_large(limit: int) -> Refused:
    return Refused(
        "too_large", f"the body has more than the {limit} bytes that are the limit here. Nothing was written."
    )


_LONGEST = 40


def numbers(request: Request, *names: str) -> dict[str, int]:
    """Return the query parameters of a request as whole numbers, by name. Parameters that the request does not have are
    left out.

    Raises `InvalidInput` for a parameter that is not in `names`, is given twice, or is not a whole number from 0 on. An
    unknown one is not ignored: a misspelt limit, for example, would then cause a whole thread to be read.
    """
    found: dict[str, int] = {}
    for name, text in request.query_params:
        if name not in names or name in found:
            raise InvalidInput(
                f"the parameter {name[:40]!r} is unknown here or given twice; known are {', '.join(names)}"
            )
        if not (text.isascii() and text.isdecimal()) or len(text) > _LONGEST:
            raise InvalidInput(f"{name} is a whole number from 0 on, not {text[:40]!r}")
        found[name] = int(text)
    return found


def tags(request: Request, name: bytes) -> set[str]:
    """Return the entity tags (HTTP) that a request lists in the header with this name, such as `if-none-match`."""
    return {tag.strip() for tag in request.headers.get(name, b"").decode("latin-1").split(",")}


def encoded(request: Request, value: msgspec.Struct, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with this value in its body: as msgpack if the client accepts that, else as JSON. `headers` are
    added to the response."""
    if MSGPACK.encode() in request.headers.get(b"accept", b""):
        return Response(msgspec.msgpack.encode(value), MSGPACK, headers=headers)
    return Response(msgspec.json.encode(value), JSON, headers=headers)
