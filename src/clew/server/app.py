"""The ASGI application of the service: all its routes, behind the gate (`Gate`) that admits or refuses each request."""

from __future__ import annotations

from clew.server.audit import Audit
from clew.server.failures import error_response
from clew.server.middleware import Gate, Metrics
from clew.server.quotas import Ledger
from clew.server.router import Router
from clew.server.routes import blobs, events, probes, threads
from clew.server.settings import Settings
from clew.server.stores import Stores

__all__ = ["create_app"]


def create_app(settings: Settings) -> Gate:
    """Return an ASGI application that serves the store named in these settings.

    The store is opened at once, and closed when the application shuts down. Raises `InvalidInput` for settings that
    cannot work.
    """
    settings.check()
    ledger = None
    if settings.quota_file is not None:
        ledger = Ledger(settings.quota_file, settings.tenant_threads, settings.tenant_bytes)
    stores = Stores(settings.store, ledger)
    metrics = Metrics()
    audit = Audit(settings.audit, required=settings.audit_required)
    table = [*threads.ROUTES, *events.ROUTES, *blobs.ROUTES, *probes.routes(stores, metrics.text)]
    api = Router(table, error_response, audit.begin)
    return Gate(api, stores, settings, metrics, audit)
