"""The service keeps to its own OpenAPI document: no request made from it, sound or not, finds a gap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from clew.server.openapi import document
from tests.sampling import FULL
from tests.server.serving import Running, a_token, serving

SECRET = "a-token-for-the-fuzzer"

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with serving(tokens=[a_token(SECRET)]) as running:
        yield running


described = schemathesis.openapi.from_dict(document())


def as_bytes(value: Any) -> Any:
    """What is binary in the document is generated as text or as a wrapper of bytes."""
    return bytes(value) if isinstance(value, bytes) else getattr(value, "data", None) or str(value).encode()


@schemathesis.serializer("application/msgpack")
def to_msgpack(context: Any, value: Any) -> bytes:
    if isinstance(value, dict):
        value = dict(value)
        if isinstance(value.get("frames"), list):
            value["frames"] = [
                as_bytes(frame) if not isinstance(frame, dict | list | int | None) else frame
                for frame in value["frames"]
            ]
        if isinstance(value.get("blobs"), dict):
            value["blobs"] = {name: as_bytes(blob) for name, blob in value["blobs"].items()}
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, OverflowError, UnicodeEncodeError):
        return msgspec.msgpack.encode(str(value).encode())


@described.parametrize()
@settings(
    max_examples=400 if FULL else 5,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_no_request_finds_a_gap(case: Any, service: Running) -> None:
    response = case.call(base_url=service.url, headers={"Authorization": f"Bearer {SECRET}"})
    excluded = [positive_data_acceptance]
    if {*(case.query or {})} - _sent(response.request.url):  # what made the request wrong may be missing from it
        excluded.append(negative_data_rejection)
    case.validate_response(response, excluded_checks=excluded)


def _sent(url: str) -> set[str]:
    """Return the names in a URL's query. A generated value such as an empty list is in no URL."""
    return {name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
