"""The routes of threads: heads, frames, refs (digests of blobs) and listings. Appends are in the module `appends`."""

from __future__ import annotations

from typing import Any

import msgspec
from blake3 import blake3
from litestar import Request, Response, delete, get, post

from clew.checkpointers import HeadQuery
from clew.checkpointers.http.protocol import JSON, LOG_HEADER, MSGPACK, Digests, log_tag
from clew.server.failures import Refused
from clew.server.request import entered
from clew.server.routes.appends import tags
from clew.server.settings import MAX_SMALL_BODY
from clew.server.streams import frame_records, head_records, respond
from clew.server.wire import decoded, numbers

__all__ = ["ROUTES", "encoded"]

AnyRequest = Request[Any, Any, Any]


@get("/v1/threads/{thread:str}")
async def head(request: AnyRequest) -> Response[bytes]:
    """Return the head of a thread, with two HTTP entity tags: that of the head, and in another header that of the log."""
    call = entered(request, "read")
    async with call.store() as store:
        found = await store.head(call.thread_id(request.path_params["thread"]))
    if found is None:
        raise Refused("absent", "there is no such thread")
    tag = f'"{blake3(msgspec.msgpack.encode(found)).hexdigest(16)}"'
    headers = {"etag": tag, LOG_HEADER: log_tag(found.frames, found.log_id)}
    if tag in tags(call.headers.get(b"if-none-match", b"")):
        return Response(b"", status_code=304, headers=headers, media_type=MSGPACK)
    return encoded(request, found, headers)


@delete("/v1/threads/{thread:str}", status_code=200)
async def remove(request: AnyRequest) -> Response[bytes]:
    """Delete a thread. Also succeeds if there is no such thread."""
    call = entered(request, "write")
    async with call.store() as store:
        await store.delete(call.thread_id(request.path_params["thread"]))
    return Response(b"", media_type=MSGPACK)


@get("/v1/threads/{thread:str}/frames")
async def read(request: AnyRequest) -> Response[Any]:
    """Return the frames of a thread in order, as a stream of records. If there is no such thread, the stream is empty."""
    call = entered(request, "read")
    given = numbers(request, "start", "stop")
    thread_id = call.thread_id(request.path_params["thread"])
    return await respond(frame_records(call, thread_id, given.get("start", 0), given.get("stop")))


@get("/v1/threads/{thread:str}/refs")
async def refs(request: AnyRequest) -> Response[bytes]:
    """Return the digests of the blobs that the frames of a thread refer to."""
    call = entered(request, "read")
    async with call.store() as store:
        found = await store.refs(call.thread_id(request.path_params["thread"]))
    return encoded(request, Digests(sorted(found)))


@post("/v1/threads/query", status_code=200)
async def query(request: AnyRequest) -> Response[Any]:
    """Return the heads that match the query in the body, as a stream of records in msgpack."""
    call = entered(request, "read")
    return await respond(head_records(call, await decoded(request.receive, call.headers, HeadQuery, MAX_SMALL_BODY)))


ROUTES = [head, remove, read, refs, query]


def encoded(request: AnyRequest, value: msgspec.Struct, headers: dict[str, str] | None = None) -> Response[bytes]:
    """Return a response with this value in its body: as msgpack if the client accepts that, else as JSON."""
    if MSGPACK in request.headers.get("accept", ""):
        return Response(msgspec.msgpack.encode(value), media_type=MSGPACK, headers=headers)
    return Response(msgspec.json.encode(value), media_type=JSON, headers=headers)
