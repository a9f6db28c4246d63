"""The OpenAPI document lists exactly the routes of the API, and the scope that each of them needs."""

from __future__ import annotations

from clew.server import Settings, create_app
from clew.server.middleware import OPEN
from clew.server.openapi import document

GATE = create_app(Settings(store="memory://", no_token=True))
ROUTES = GATE.api.routes


def test_every_route_is_in_the_document_and_the_other_way_round() -> None:
    routed = [(route.path, route.method.lower()) for route in ROUTES]
    in_document = {(path, method) for path, operations in document()["paths"].items() for method in operations}
    assert in_document == set(routed)
    assert len(routed) == len(in_document)


def test_a_route_needs_the_scope_that_the_document_names() -> None:
    for route in ROUTES:
        described = document()["paths"][route.path][route.method.lower()]
        if route.path in OPEN:
            assert (route.scope, described["security"]) == (None, [])
        else:
            needs = f"Needs the scope `{route.scope}`."
            assert route.scope is not None
            assert described.get("description", needs) == needs


def test_the_pages_of_the_inspector_are_not_in_the_document() -> None:
    pages = {route.path for route in GATE.inspector.router.routes}
    assert pages.isdisjoint(document()["paths"])
    assert all(GATE.inspector.owns(path) for path in pages)
    assert not any(GATE.inspector.owns(route.path) for route in ROUTES)
