"""The routes of threads: heads, frames, appends, refs (digests of blobs) and listings."""

from __future__ import annotations

import msgspec
from blake3 import blake3

from clew.checkpointers import Head, HeadQuery
from clew.checkpointers.base import MAX_APPEND, MAX_FRAME, MAX_HEAD
from clew.checkpointers.http.protocol import LOG_HEADER, MSGPACK, Append, Digests, log_tag
from clew.errors import Conflict
from clew.server.additions import check_addition
from clew.server.failures import Refused
from clew.server.request import Request
from clew.server.response import Response
from clew.server.router import Route
from clew.server.settings import MAX_APPEND_BODY, MAX_QUERY_BODY
from clew.server.streams import frame_records, head_records, respond
from clew.server.wire import IncomingAppend, decoded, encoded, numbers, parsed, tags

__all__ = ["ROUTES"]


async def head(request: Request) -> Response:
    """Return the head of a thread. The header `ETag` of the response changes whenever the head changes, and the header
    `clew-log` whenever frames are appended or the log is replaced. Refuses the request if there is no such thread."""
    async with request.store() as store:
        found = await store.head(request.thread_id)
    if found is None:
        raise Refused("absent", "there is no such thread")
    tag = f'"{blake3(msgspec.msgpack.encode(found)).hexdigest(16)}"'
    headers = {"etag": tag, LOG_HEADER: log_tag(found.frames, found.log_id)}
    if tag in tags(request, b"if-none-match"):
        return Response(status=304, headers=headers)
    return encoded(request, found, headers)


async def remove(request: Request) -> Response:
    """Delete a thread. Also succeeds if there is no such thread."""
    request.need_client()
    async with request.store() as store:
        await store.delete(request.thread_id)
    request.channels.wake(request.channel)
    return Response(kind=MSGPACK)


async def read(request: Request) -> Response:
    """Return the frames of a thread in order, as a stream of records. The query may limit them: from the frame number
    `start`, counted from 0, to before `stop`. If there is no such thread, the stream is empty."""
    given = numbers(request, "start", "stop")
    return await respond(frame_records(request, request.thread_id, given.get("start", 0), given.get("stop")))


async def append(request: Request) -> Response:
    """Append frames, refs (digests of blobs) and a head to a thread in one step. The body says how many frames the log
    has before the append. The append is refused if the log has another number of frames, or if the header `If-Match` or
    `If-None-Match` forbids it.

    Repeating the very same append succeeds and changes nothing.
    """
    thread_id = request.thread_id
    body = await decoded(request, IncomingAppend, MAX_APPEND_BODY, json=False)
    if len(body.head) > MAX_HEAD:
        raise Refused("too_large", f"a head has up to {MAX_HEAD} bytes. Shorten the title or the tags of the thread.")
    head = parsed(Head, body.head)
    sizes = [len(frame) for frame in body.frames]
    if sum(sizes) > MAX_APPEND or max(sizes, default=0) > MAX_FRAME:
        raise Refused(
            "too_large",
            f"a frame has up to {MAX_FRAME} bytes and an append up to {MAX_APPEND}. Put large values in blobs.",
        )
    _check_conditions(request, thread_id, log_tag(body.at, head.log_id), is_first=not body.at)
    async with request.store() as store:
        if request.token.allows("write"):
            request.need_client()
            await store.append(thread_id, body.frames, at=body.at, head=head, refs=body.refs)
        else:
            # Under a lock, because an append that was checked against an older head could destroy history after all.
            async with request.lock(thread_id):
                addition = Append(at=body.at, head=head, frames=body.frames, refs=body.refs)
                check_addition(await store.head(thread_id), addition)
                request.need_client()
                await store.append(thread_id, body.frames, at=body.at, head=head, refs=body.refs)
    request.channels.wake(request.channel)
    return Response(headers={"etag": log_tag(head.frames, head.log_id)})


def _check_conditions(request: Request, thread_id: str, here: str, *, is_first: bool) -> None:
    """Raise `Conflict` if the header `If-Match` or `If-None-Match` of an append forbids it. `here` is the HTTP entity
    tag of the log to which the request wants to append, and `is_first` says that this log has no frames yet. The
    headers are compared with this tag; `*` stands for any log that has frames."""
    match, none = request.headers.get(b"if-match"), request.headers.get(b"if-none-match")
    if match is not None and (is_first if match.strip() == b"*" else here not in tags(request, b"if-match")):
        raise Conflict(thread_id, f"If-Match does not allow an append to the log {here}")
    if none is not None and (not is_first if none.strip() == b"*" else here in tags(request, b"if-none-match")):
        raise Conflict(thread_id, f"If-None-Match does not allow an append to the log {here}")


async def refs(request: Request) -> Response:
    """Return the digests of the blobs that the frames of a thread refer to."""
    async with request.store() as store:
        found = await store.refs(request.thread_id)
    return encoded(request, Digests(sorted(found)))


async def query(request: Request) -> Response:
    """Return the heads of the threads that match the query in the body (conditions such as status and tags, an order, a
    limit), as a stream of records in msgpack."""
    return await respond(head_records(request, await decoded(request, HeadQuery, MAX_QUERY_BODY)))


ROUTES = [
    Route("GET", "/v1/threads/{thread}", "read", head),
    Route("DELETE", "/v1/threads/{thread}", "delete", remove),
    Route("GET", "/v1/threads/{thread}/frames", "read", read),
    Route("POST", "/v1/threads/{thread}/frames", "append", append),
    Route("GET", "/v1/threads/{thread}/refs", "read", refs),
    Route("POST", "/v1/threads/query", "read", query),
]
