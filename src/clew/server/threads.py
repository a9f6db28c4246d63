"""The routes of threads: heads, logs, refs."""

from __future__ import annotations

from typing import Any

import msgspec
from blake3 import blake3
from litestar import Request, Response, delete, get, post

from clew.checkpointers import HeadQuery
from clew.checkpointers._http_wire import JSON, LOG_HEADER, MSGPACK, Append, Digests, log_tag
from clew.checkpointers.base import MAX_APPEND, MAX_FRAME
from clew.errors import Conflict, InvalidInput
from clew.server.bodies import decoded
from clew.server.calls import entered
from clew.server.failures import Refused
from clew.server.settings import MAX_APPEND_BODY, MAX_SMALL_BODY
from clew.server.streams import frame_records, head_records, respond

__all__ = ["ROUTES", "encoded"]

AnyRequest = Request[Any, Any, Any]

_LONGEST_NUMBER = 40


@get("/v1/threads/{thread:str}")
async def head(request: AnyRequest) -> Response[bytes]:
    """The head of a thread, with a tag of its own and that of the log."""
    call = entered(request, "read")
    async with call.store() as store:
        found = await store.head(call.thread_id(request))
    if found is None:
        raise Refused("absent", "there is no such thread")
    tag = f'"{blake3(msgspec.msgpack.encode(found)).hexdigest(16)}"'
    headers = {"etag": tag, LOG_HEADER: log_tag(found.frames, found.log_id)}
    if tag in _tags(request.headers.get("if-none-match", "")):
        return Response(b"", status_code=304, headers=headers, media_type=MSGPACK)
    return encoded(request, found, headers)


@delete("/v1/threads/{thread:str}", status_code=200)
async def remove(request: AnyRequest) -> Response[bytes]:
    """Delete a thread. One that is absent is no error."""
    call = entered(request, "write")
    async with call.store() as store:
        await store.delete(call.thread_id(request))
    return Response(b"", media_type=MSGPACK)


@get("/v1/threads/{thread:str}/frames")
async def read(request: AnyRequest) -> Response[Any]:
    """Frames in order, as records. None for a thread that is absent."""
    call = entered(request, "read")
    start = _number(request, "start") or 0
    return await respond(frame_records(call, call.thread_id(request), start, _number(request, "stop")))


@post("/v1/threads/{thread:str}/frames", status_code=200)
async def append(request: AnyRequest) -> Response[bytes]:
    """Append frames, refs and a head as one, if the log is where the body and the conditions say.

    The very same append made again succeeds and changes nothing, whatever its conditions: it has been carried out.
    """
    call = entered(request, "write")
    thread_id = call.thread_id(request)
    body = await decoded(request, Append, MAX_APPEND_BODY, json=False)
    if max(map(len, body.frames), default=0) > MAX_FRAME or sum(map(len, body.frames)) > MAX_APPEND:
        raise Refused(
            "too_large",
            f"a frame has up to {MAX_FRAME} bytes and an append up to {MAX_APPEND}. Put large values in blobs.",
        )
    _check_conditions(request, thread_id, body.at, body.head.log_id)
    async with call.store() as store:
        await store.append(thread_id, body.frames, at=body.at, head=body.head, refs=body.refs)
    return Response(b"", media_type=MSGPACK, headers={"etag": log_tag(body.head.frames, body.head.log_id)})


@get("/v1/threads/{thread:str}/refs")
async def refs(request: AnyRequest) -> Response[bytes]:
    """The blobs that a thread's frames point at."""
    call = entered(request, "read")
    async with call.store() as store:
        found = await store.refs(call.thread_id(request))
    return encoded(request, Digests(sorted(found)))


@post("/v1/threads/query", status_code=200)
async def query(request: AnyRequest) -> Response[Any]:
    """The heads that match a query, as records of msgpack."""
    call = entered(request, "read")
    return await respond(head_records(call, await decoded(request, HeadQuery, MAX_SMALL_BODY)))


ROUTES = [head, remove, read, append, refs, query]


def encoded(request: AnyRequest, value: msgspec.Struct, headers: dict[str, str] | None = None) -> Response[bytes]:
    """In msgpack for those who ask for it, in JSON for all others."""
    if MSGPACK in request.headers.get("accept", ""):
        return Response(msgspec.msgpack.encode(value), media_type=MSGPACK, headers=headers)
    return Response(msgspec.json.encode(value), media_type=JSON, headers=headers)


def _check_conditions(request: AnyRequest, thread_id: str, at: int, log_id: str) -> None:
    """The position that an append names in its body is the one that its headers allow."""
    here = log_tag(at, log_id)
    match = request.headers.get("if-match")
    if match is not None and (not at if match.strip() == "*" else here not in _tags(match)):
        raise Conflict(thread_id, f"If-Match does not allow an append to the log {here}")
    none = request.headers.get("if-none-match")
    if none is not None and (at if none.strip() == "*" else here in _tags(none)):
        raise Conflict(thread_id, f"If-None-Match does not allow an append to the log {here}")


def _tags(header: str) -> set[str]:
    return {tag.strip() for tag in header.split(",")}


def _number(request: AnyRequest, name: str) -> int | None:
    texts = request.query_params.getall(name, [])
    if not texts:
        return None
    text = str(texts[0])
    if len(texts) > 1 or not (text.isascii() and text.isdecimal()) or len(text) > _LONGEST_NUMBER:
        raise InvalidInput(f"{name} is one whole number from 0 on, not {text[:40]!r}")
    return int(text)
