"""The routes for operators: whether the service is up, whether its store answers, metrics, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from litestar import MediaType, Response, get

from clew.checkpointers.http.protocol import JSON
from clew.errors import ClewError
from clew.server.failures import Refused
from clew.server.openapi import document
from clew.server.stores import Stores

__all__ = ["Probes"]

_NOBODY = "clew: is the store there?"
"""The id of a thread that does not exist. If the store answers a request for it, the store works."""


class Probes:
    """Makes the routes for operators: health, readiness, metrics and the OpenAPI document."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.counted: Callable[[], str] = str
        """Returns the metrics as text. It is set after construction, because the `Gate`, which counts the requests, is
        made later."""
        self._document = msgspec.json.encode(document())

    def routes(self) -> list[Any]:
        @get("/healthz", media_type=MediaType.TEXT)
        async def healthz() -> str:
            return "ok\n"

        @get("/readyz", media_type=MediaType.TEXT)
        async def readyz() -> str:
            try:
                async with self._stores.use("") as store:
                    await store.head(_NOBODY)
            except ClewError:
                raise Refused(
                    "unavailable", "the store behind the server cannot be reached or did not answer"
                ) from None
            return "ok\n"

        @get("/metrics")
        async def metrics() -> Response[bytes]:
            return Response(self.counted().encode(), media_type="text/plain; version=0.0.4")

        @get("/openapi.json")
        async def openapi() -> Response[bytes]:
            return Response(self._document, media_type=JSON)

        return [healthz, readyz, metrics, openapi]
