"""The route that appends to a thread. It is served straight from ASGI, without the router: agents wait for every
append, and the router would double the time that HTTP adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.checkpointers.base import MAX_APPEND, MAX_FRAME
from clew.checkpointers.http.protocol import Append, log_tag
from clew.errors import Conflict
from clew.server.failures import Answer, Refused, failure_of, refusal
from clew.server.request import Call
from clew.server.settings import MAX_APPEND_BODY
from clew.server.wire import decoded

__all__ = ["TEMPLATE", "answer", "is_append", "tags"]

Headers = Mapping[bytes, bytes]

_PREFIX, _SUFFIX = "/v1/threads/", "/frames"
TEMPLATE = "/v1/threads/{thread}/frames"


def is_append(method: str, path: str) -> bool:
    return method == "POST" and path.startswith(_PREFIX) and path.endswith(_SUFFIX) and path.count("/") == 4


async def answer(call: Call, path: str, headers: Headers, receive: Any) -> Answer:
    """Append frames, refs (digests of blobs) and a head to a thread in one step, and return the response. The body says
    how many frames the log has before the append. The append is refused if the log has another number of frames, or if
    the header `If-Match` or `If-None-Match` forbids it.

    Repeating the very same append succeeds and changes nothing.
    """
    try:
        tag = await _append(call, path[len(_PREFIX) : -len(_SUFFIX)], headers, receive)
    except Exception as error:  # noqa: BLE001 - the client gets every error as a failure
        return refusal(failure_of(error))
    return 200, [(b"content-length", b"0"), (b"etag", tag.encode())], b""


async def _append(call: Call, thread: str, headers: Headers, receive: Any) -> str:
    call.need("write")
    thread_id = call.thread_id(thread)
    body = await decoded(receive, headers, Append, MAX_APPEND_BODY, json=False)
    sizes = [len(frame) for frame in body.frames]
    if sum(sizes) > MAX_APPEND or max(sizes, default=0) > MAX_FRAME:
        raise Refused(
            "too_large",
            f"a frame has up to {MAX_FRAME} bytes and an append up to {MAX_APPEND}. Put large values in blobs.",
        )
    head = body.head
    _check_conditions(headers, thread_id, log_tag(body.at, head.log_id), is_first=not body.at)
    async with call.store() as store:
        await store.append(thread_id, body.frames, at=body.at, head=head, refs=body.refs)
    return log_tag(head.frames, head.log_id)


def _check_conditions(headers: Headers, thread_id: str, here: str, *, is_first: bool) -> None:
    """Raise `Conflict` if the header `If-Match` or `If-None-Match` forbids the append. The request's body says which
    log it expects before the append: `here` is the entity tag (HTTP) of that log, and `is_first` says that it has no
    frames."""
    match = headers.get(b"if-match")
    if match is not None and (is_first if match.strip() == b"*" else here not in tags(match)):
        raise Conflict(thread_id, f"If-Match does not allow an append to the log {here}")
    none = headers.get(b"if-none-match")
    if none is not None and (not is_first if none.strip() == b"*" else here in tags(none)):
        raise Conflict(thread_id, f"If-None-Match does not allow an append to the log {here}")


def tags(header: bytes) -> set[str]:
    """Return the entity tags of an `If-Match` or `If-None-Match` header."""
    return {tag.strip() for tag in header.decode("latin-1").split(",")}
