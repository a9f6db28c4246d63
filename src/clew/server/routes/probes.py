"""The routes for those who run the service: is it up, is the store there, what does it count, what does it speak."""

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
"""The id of a thread that nobody has, to ask the store for."""


class Probes:
    """They need what handlers of threads do not: the store itself, and the counters."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.counted: Callable[[], str] = str
        """Gives the text of the metrics."""
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
