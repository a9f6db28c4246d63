"""The routes of blobs: store them, fetch them, ask which are missing and, with the admin scope, list and delete them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from clew.checkpointers.checks import check_digests
from clew.checkpointers.http.protocol import MSGPACK, OCTETS, Digests
from clew.server.failures import Refused
from clew.server.request import Request
from clew.server.response import Response
from clew.server.router import Route
from clew.server.settings import MAX_APPEND_BODY, MAX_SMALL_BODY
from clew.server.streams import blob_records, digest_records, respond
from clew.server.wire import (
    IncomingBlobs,
    IncomingDigests,
    IncomingSweep,
    decoded,
    encoded,
    numbers,
    octets,
    tags,
)

__all__ = ["ROUTES"]

_MANY = 4096
"""A list of more than this many digests is checked on another OS thread, so that other requests need not wait."""
_LONGEST = timedelta.max // timedelta(microseconds=1)


async def keep(request: Request) -> Response:
    """Store the blob in the request's body. Refuse it if the digest in the path is not the digest of these bytes."""
    digest = _digest(request)
    blobs = {digest: await octets(request, request.settings.max_blob)}
    async with request.store() as store:
        await store.put_blobs(blobs)
    return Response(kind=MSGPACK)


async def keep_many(request: Request) -> Response:
    """Store the blobs in the request's body. If one of them does not have the digest that is given for it, refuse all."""
    blobs = (await decoded(request, IncomingBlobs, MAX_APPEND_BODY, json=False)).blobs
    if max(map(len, blobs.values()), default=0) > request.settings.max_blob:
        raise Refused("too_large", f"a blob has up to {request.settings.max_blob} bytes here. Nothing was kept.")
    async with request.store() as store:
        await store.put_blobs(blobs)
    return Response(kind=MSGPACK)


async def fetch(request: Request) -> Response:
    """Return the blob with the digest in the path. The digest is also its entity tag (HTTP), because the bytes of a
    digest never change."""
    digest = _digest(request)
    async with request.store() as store:
        found = await store.get_blobs([digest])
    if digest not in found:
        raise Refused("absent", "there is no such blob")
    headers = {"etag": f'"{digest}"'}
    if headers["etag"] in tags(request, b"if-none-match"):
        return Response(status=304, headers=headers)
    return Response(found[digest], OCTETS, headers=headers)


async def fetch_many(request: Request) -> Response:
    """Return the blobs whose digests the request's body lists, as a stream of records. Each record has the 32 bytes of
    the digest, then the blob. Blobs that do not exist are left out."""
    return await respond(blob_records(request, await _digests(request)))


async def missing(request: Request) -> Response:
    """Return the digests in the request's body whose blobs do not exist. The blobs that exist are touched: garbage
    collection spares them for a time."""
    digests = await _digests(request)
    async with request.store() as store:
        absent = await store.missing_blobs(digests)
    return encoded(request, Digests(sorted(absent)))


async def untouched(request: Request) -> Response:
    """Return the digests of the blobs that were not touched within the last `untouched_for_micros` microseconds, a
    parameter of the query. They are streamed, 32 bytes each. A blob is touched when it is stored, referred to by an
    append, or asked for with `missing`."""
    time = _time(numbers(request, "untouched_for_micros").get("untouched_for_micros", 0))
    return await respond(digest_records(request, time))


async def sweep(request: Request) -> Response:
    """Delete the blobs that the request's body lists, except those that were touched within the time that the body
    names. A blob is touched when it is stored, referred to by an append, or found by the route `missing`, which asks
    which blobs do not exist."""
    body = await decoded(request, IncomingSweep, MAX_SMALL_BODY)
    request.need_client()
    async with request.store() as store:
        await store.delete_blobs(body.digests, untouched_for=_time(body.untouched_for_micros))
    return Response(kind=MSGPACK)


ROUTES = [
    Route("PUT", "/v1/blobs/{digest}", "append", keep),
    Route("POST", "/v1/blobs", "append", keep_many),
    Route("GET", "/v1/blobs/{digest}", "read", fetch),
    Route("POST", "/v1/blobs/get", "read", fetch_many),
    Route("POST", "/v1/blobs/missing", "read", missing),
    Route("GET", "/v1/blobs", "admin", untouched),
    Route("POST", "/v1/blobs/delete", "admin", sweep),
]


def _digest(request: Request) -> str:
    digest: str = request.path_params["digest"]
    check_digests([digest])
    return digest


async def _digests(request: Request) -> list[str]:
    digests = list(dict.fromkeys((await decoded(request, IncomingDigests, MAX_SMALL_BODY)).digests))
    if len(digests) > _MANY:
        await asyncio.to_thread(check_digests, digests)
    else:
        check_digests(digests)
    return digests


def _time(micros: int) -> timedelta:
    return timedelta(microseconds=min(micros, _LONGEST))
