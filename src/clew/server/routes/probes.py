"""The routes for operators: whether the service is up, whether its store can write, metrics, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from datetime import timedelta

import msgspec
from blake3 import blake3

from clew.checkpointers.http.protocol import JSON
from clew.errors import ClewError
from clew.server.failures import Refused, log_failure, unavailability
from clew.server.openapi import document
from clew.server.request import Request
from clew.server.response import Response
from clew.server.router import Route
from clew.server.stores import Stores

__all__ = ["routes"]

_FRESH = 1.0
"""Seconds for which the answer of `/readyz` is used again. Anybody may ask, and many requests must not cause many
writes to the store."""


class _Readiness:
    """Finds out whether a store can write. A result is used again for `_FRESH` seconds, so that many requests do not
    cause many writes."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._asked: float | None = None
        self._found: ClewError | None = None
        self._lock = asyncio.Lock()

    async def check(self) -> None:
        """Raise the error of the store if it could not write at the last test. Tests it anew if the last test was a
        second (`_FRESH`) or more ago, or if there was none."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._asked is None or now - self._asked >= _FRESH:
                self._found = await self._try()
                self._asked = asyncio.get_running_loop().time()
        if self._found is not None:
            raise self._found

    async def _try(self) -> ClewError | None:
        """Test whether the store can write: store a blob of a few random bytes, and delete it again. To read, or to
        store a blob that exists already, would succeed on a full disk too. Returns the error of the store; None if it
        can write."""
        data = secrets.token_bytes(32)
        digest = blake3(data).hexdigest()
        try:
            async with self._stores.use("") as store:
                await store.put_blobs({digest: data})
                await store.delete_blobs([digest], untouched_for=timedelta(0))
        except ClewError as error:
            log_failure(error)
            return error
        return None


def routes(stores: Stores, counters: Callable[[], str]) -> list[Route]:
    """Return the routes for operators: `/healthz` (the service is up), `/readyz` (its stores work), `/metrics` and
    `/openapi.json`. `counters` returns the text of `/metrics`, in the format of Prometheus."""
    openapi_document = msgspec.json.encode(document())

    async def healthz(_: Request) -> Response:
        return Response(b"ok\n", "text/plain")

    readiness = _Readiness(stores)

    async def readyz(_: Request) -> Response:
        try:
            await readiness.check()
        except ClewError as error:
            raise Refused("unavailable", unavailability(error)) from None
        return Response(b"ok\n", "text/plain")

    async def metrics(_: Request) -> Response:
        return Response(counters().encode(), "text/plain; version=0.0.4")

    async def openapi(_: Request) -> Response:
        return Response(openapi_document, JSON)

    return [
        Route("GET", "/healthz", None, healthz),
        Route("GET", "/readyz", None, readyz),
        Route("GET", "/metrics", "metrics", metrics),
        Route("GET", "/openapi.json", None, openapi),
    ]
