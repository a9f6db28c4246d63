"""The ASGI application of the service: all its routes, behind the gate (`Gate`) that admits or refuses each request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from litestar import Litestar

from clew.server.failures import HANDLERS
from clew.server.middleware import Gate
from clew.server.routes import blobs, threads
from clew.server.routes.probes import Probes
from clew.server.settings import Settings
from clew.server.stores import Stores

__all__ = ["create_app"]


def create_app(settings: Settings) -> Gate:
    """Return an ASGI application that serves the store named in these settings.

    The store is opened at once, and closed when the application shuts down. Raises `InvalidInput` for settings that
    cannot work.
    """
    settings.check()
    stores = Stores(settings.store)
    probes = Probes(stores)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await stores.close()

    routes = Litestar(
        [*threads.ROUTES, *blobs.ROUTES, *probes.routes()],
        exception_handlers=HANDLERS,
        lifespan=[lifespan],
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,
    )
    gate = Gate(routes, stores, settings)
    probes.counted = lambda: gate.metrics.text(gate.under_way)
    return gate
