"""The routes of blobs: store them, fetch them, ask which are missing and, with the admin scope, list and delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from litestar import Request, Response, get, post, put

from clew.checkpointers.checks import check_blobs, check_digests
from clew.checkpointers.http.protocol import MSGPACK, OCTETS, Blobs, Digests, Sweep
from clew.server.failures import Refused
from clew.server.request import Call, entered
from clew.server.routes.appends import tags
from clew.server.routes.threads import encoded
from clew.server.settings import MAX_APPEND_BODY, MAX_SMALL_BODY
from clew.server.streams import blob_records, digest_records, respond
from clew.server.wire import decoded, numbers, octets

__all__ = ["ROUTES"]

AnyRequest = Request[Any, Any, Any]

_LONGEST = timedelta.max // timedelta(microseconds=1)


@put("/v1/blobs/{digest:str}", status_code=200)
async def keep(request: AnyRequest) -> Response[bytes]:
    """Store the blob in the request's body. Refuse it if the digest in the path is not the digest of these bytes."""
    call = entered(request, "write")
    digest = _digest(request)
    blobs = {digest: await octets(request.receive, call.headers, call.settings.max_blob)}
    check_blobs(blobs)
    async with call.store() as store:
        await store.put_blobs(blobs)
    return Response(b"", media_type=MSGPACK)


@post("/v1/blobs", status_code=200)
async def keep_many(request: AnyRequest) -> Response[bytes]:
    """Store the blobs in the request's body. If one of them does not have the digest that is given for it, refuse all."""
    call = entered(request, "write")
    blobs = (await decoded(request.receive, call.headers, Blobs, MAX_APPEND_BODY, json=False)).blobs
    if max(map(len, blobs.values()), default=0) > call.settings.max_blob:
        raise Refused("too_large", f"a blob has up to {call.settings.max_blob} bytes here. Nothing was kept.")
    async with call.store() as store:
        await store.put_blobs(blobs)
    return Response(b"", media_type=MSGPACK)


@get("/v1/blobs/{digest:str}")
async def fetch(request: AnyRequest) -> Response[bytes]:
    """Return the blob with the digest in the path. The digest is also its entity tag (HTTP), because the bytes of a
    digest never change."""
    call = entered(request, "read")
    digest = _digest(request)
    async with call.store() as store:
        found = await store.get_blobs([digest])
    if digest not in found:
        raise Refused("absent", "there is no such blob")
    headers = {"etag": f'"{digest}"'}
    if f'"{digest}"' in tags(call.headers.get(b"if-none-match", b"")):
        return Response(b"", status_code=304, headers=headers, media_type=OCTETS)
    return Response(found[digest], media_type=OCTETS, headers=headers)


@post("/v1/blobs/get", status_code=200)
async def fetch_many(request: AnyRequest) -> Response[Any]:
    """Return those of the asked blobs that exist, as a stream of records. Each record has the 32 bytes of the digest,
    then the blob."""
    call = entered(request, "read")
    digests = await _digests(request, call)
    return await respond(blob_records(call, digests))


@post("/v1/blobs/missing", status_code=200)
async def missing(request: AnyRequest) -> Response[bytes]:
    """Return those of the given digests whose blobs do not exist. The blobs that exist are touched: garbage collection
    spares them for a time."""
    call = entered(request, "read")
    digests = await _digests(request, call)
    async with call.store() as store:
        absent = await store.missing_blobs(digests)
    return encoded(request, Digests(sorted(absent)))


@get("/v1/blobs")
async def untouched(request: AnyRequest) -> Response[Any]:
    """Return the digests of the blobs that were not touched for a time, as a stream of records of 32 bytes. The query
    gives the time in microseconds. A blob is touched when it is stored, referred to by an append, or asked for with
    `missing`."""
    call = entered(request, "admin")
    time = _time(numbers(request, "untouched_for_micros").get("untouched_for_micros", 0))
    return await respond(digest_records(call, _listed(call, time)))


@post("/v1/blobs/delete", status_code=200)
async def sweep(request: AnyRequest) -> Response[bytes]:
    """Delete the blobs that the request's body lists, except those that were touched within the time that the body
    names. A blob is touched when it is stored, referred to by an append, or asked for with `missing`."""
    call = entered(request, "admin")
    body = await decoded(request.receive, call.headers, Sweep, MAX_SMALL_BODY)
    async with call.store() as store:
        await store.delete_blobs(body.digests, untouched_for=_time(body.untouched_for_micros))
    return Response(b"", media_type=MSGPACK)


ROUTES = [keep, keep_many, fetch, fetch_many, missing, untouched, sweep]


def _digest(request: AnyRequest) -> str:
    digest: str = request.path_params["digest"]
    check_digests([digest])
    return digest


async def _digests(request: AnyRequest, call: Call) -> list[str]:
    return list(dict.fromkeys((await decoded(request.receive, call.headers, Digests, MAX_SMALL_BODY)).digests))


async def _listed(call: Call, time: timedelta) -> AsyncIterator[str]:
    async with call.store() as store:
        async for digest in store.blobs(untouched_for=time):
            yield digest


def _time(micros: int) -> timedelta:
    return timedelta(microseconds=min(micros, _LONGEST))
