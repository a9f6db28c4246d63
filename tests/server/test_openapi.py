"""The OpenAPI document describes the routes that there are."""

from __future__ import annotations

from clew.server.openapi import document
from tests.server.serving import serving


def test_every_route_is_in_the_document_and_the_other_way_round() -> None:
    with serving() as service:
        routes = service.server.gate.inner.routes  # type: ignore[attr-defined]
    routed = {
        (route.path_format, method.lower()) for route in routes for method in route.methods if method != "OPTIONS"
    } | {("/v1/threads/{thread}/frames", "post")}
    in_document = {(path, method) for path, operations in document()["paths"].items() for method in operations}
    assert in_document == routed
