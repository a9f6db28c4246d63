"""The routes for operators: whether the service is up, whether its store answers, metrics, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from clew.checkpointers.http.protocol import JSON
from clew.errors import ClewError
from clew.server.failures import Refused
from clew.server.openapi import document
from clew.server.request import Request
from clew.server.response import Response
from clew.server.router import Route
from clew.server.stores import Stores

__all__ = ["routes"]

_NOBODY = "clew: is the store there?"
"""The id of a thread that does not exist. If the store answers a request for it, the store works."""


def routes(stores: Stores, counters: Callable[[], str]) -> list[Route]:
    """Return the routes for operators of a service with these stores. `counters` returns the metrics as text."""
    openapi_document = msgspec.json.encode(document())

    async def healthz(_: Request) -> Response:
        return Response(b"ok\n", "text/plain")

    async def readyz(_: Request) -> Response:
        try:
            async with stores.use("") as store:
                await store.head(_NOBODY)
        except ClewError:
            raise Refused("unavailable", "the store behind the server cannot be reached or did not answer") from None
        return Response(b"ok\n", "text/plain")

    async def metrics(_: Request) -> Response:
        return Response(counters().encode(), "text/plain; version=0.0.4")

    async def openapi(_: Request) -> Response:
        return Response(openapi_document, JSON)

    return [
        Route("GET", "/healthz", None, healthz),
        Route("GET", "/readyz", None, readyz),
        Route("GET", "/metrics", "admin", metrics),
        Route("GET", "/openapi.json", None, openapi),
    ]
