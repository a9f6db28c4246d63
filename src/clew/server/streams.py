"""Long responses, sent as a stream of records, each with its length in front. The store is read page by page, so that a
long thread is never in memory as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import timedelta

import msgspec

from clew.checkpointers import Checkpointer, HeadQuery
from clew.checkpointers.http.protocol import END, RECORDS, failure_record, record_size
from clew.server.failures import Refused, failure_of
from clew.server.request import Request
from clew.server.response import Response, Stream

__all__ = ["FIRST_FRAMES", "MOST_FRAMES", "blob_records", "digest_records", "frame_records", "head_records", "respond"]

FIRST_FRAMES = 64
"""The most frames that the first read of the store asks for. If the request asks for no more than these, there is no
second read."""
MOST_FRAMES = 128
"""The most frames that each later read of the store asks for. The limit is needed because the size of frames is known
only after they are read."""
_PAGE = 2**21
"""About how many bytes one read of the store should return."""
_CHUNK = 2**16
"""Small records are collected, and sent together once they have at least this many bytes in all."""
_PIECE = 2**18
"""A value of more bytes than this is sent in pieces of this size; the last piece may be smaller."""

_encode = msgspec.msgpack.Encoder().encode


async def respond(parts: Stream) -> Response:
    """Return a response with the records whose bytes `parts` yields. It has a single body if they fit into one chunk,
    else it is a stream of chunks.

    An error before the second chunk is ready is raised, so that the response gets the error's status code. A later
    error is sent as the last record of the stream.
    """
    chunks = _gathered(parts)
    first = await anext(chunks, b"")
    second = await anext(chunks, None)
    if second is None:
        return Response(first + END, RECORDS)
    return Response(_rest(first, second, chunks), RECORDS)


async def _rest(first: bytes, second: bytes, chunks: Stream) -> Stream:
    """Yield the body of a streamed response: `first` and `second`, which are ready, the other chunks, and a record that
    marks the end. If making a chunk fails, yield a record with the error, as the status code was sent already."""
    async with aclosing(chunks):
        yield first
        yield second
        try:
            async for chunk in chunks:
                yield chunk
        except Exception as error:  # noqa: BLE001 - whatever it was, the client must learn that this is not all
            yield failure_record(failure_of(error))
        else:
            yield END


async def _gathered(parts: Stream) -> Stream:
    """Yield the bytes of a response, which come in `parts` of any size, in chunks: small parts are joined until they
    have at least `_CHUNK` bytes, and a part of more than `_PIECE` bytes is cut into pieces of that size."""
    gathered: list[bytes] = []
    size = 0
    async with aclosing(parts):
        async for part in parts:
            if len(part) > _PIECE:
                yield b"".join(gathered)
                gathered, size = [], 0
                view = memoryview(part)
                for start in range(0, len(part), _PIECE):
                    yield bytes(view[start : start + _PIECE])
                continue
            gathered.append(part)
            size += len(part)
            if size >= _CHUNK:
                yield b"".join(gathered)
                gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


async def frame_records(request: Request, thread_id: str, start: int, stop: int | None) -> Stream:
    async with request.store() as store:
        async for page in _pages(store, thread_id, start, stop):
            for frame in page:
                yield record_size(len(frame))
                yield frame


async def _pages(store: Checkpointer, thread_id: str, start: int, stop: int | None) -> AsyncIterator[Sequence[bytes]]:
    """Yield the frames of a thread from number `start` to before `stop`, in lists of frames that one read of the store
    returned. Without `stop`, yield all that exist at the beginning. Frames that are appended meanwhile are left out.

    Raises `Refused` if the thread is deleted or replaced meanwhile, so that frames of two logs are never mixed.
    """
    end = start + FIRST_FRAMES if stop is None else min(stop, start + FIRST_FRAMES)
    page = await store.read(thread_id, start=start, stop=end)
    if end == stop or len(page) < end - start:
        yield page
        return
    head = await store.head(thread_id)
    if head is None:
        return
    end = head.frames if stop is None else min(stop, head.frames)
    count = FIRST_FRAMES
    while start < end:
        page = await store.read(thread_id, start=start, stop=min(start + count, end))
        now = await store.head(thread_id)
        if now is None or now.log_id != head.log_id or len(page) != min(count, end - start):
            raise Refused("unavailable", "the thread was deleted while it was being read")
        yield page
        start += len(page)
        count = _next_count(len(page), sum(map(len, page)), MOST_FRAMES)


async def blob_records(request: Request, digests: Sequence[str]) -> Stream:
    """Yield a record for each of these blobs that exists: its length, its digest and its bytes. Blobs that do not exist
    are left out.

    A checkpointer returns each blob as a whole. How many blobs are read at a time depends on the size of the last ones:
    one read should return about `_PAGE` bytes.
    """
    async with request.store() as store:
        start, count = 0, 8
        while start < len(digests):
            found = await store.get_blobs(digests[start : start + count])
            start += count
            size = sum(map(len, found.values()))
            is_counted = request.room is not None and size > 2 * _PAGE
            if request.room is not None and is_counted:
                request.room.take(request.token, size)
            count = _next_count(max(1, len(found)), size, 256)
            while found:
                digest, data = found.popitem()
                yield record_size(32 + len(data)) + bytes.fromhex(digest)
                yield data
            if request.room is not None and is_counted:
                request.room.give_back(size)


async def head_records(request: Request, query: HeadQuery) -> Stream:
    async with request.store() as store:
        async for head in store.heads(query):
            data = _encode(head)
            yield record_size(len(data)) + data


async def digest_records(request: Request, untouched_for: timedelta) -> Stream:
    async with request.store() as store:
        async for digest in store.blobs(untouched_for=untouched_for):
            yield record_size(32) + bytes.fromhex(digest)


def _next_count(count: int, size: int, most: int) -> int:
    """Return how many items to read next, so that they have about `_PAGE` bytes together. The result is at least 1 and
    at most `most`. The last `count` items had `size` bytes together, and the next are assumed to be as large."""
    return max(1, min(most, _PAGE * count // max(1, size)))
