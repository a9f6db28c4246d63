"""The OpenAPI 3.1 document of the service. Its schemas are made from the structs that the service decodes and encodes."""

from __future__ import annotations

from typing import Any

import msgspec

from clew import __version__
from clew.checkpointers.heads import Head, HeadQuery
from clew.checkpointers.http.protocol import (
    EVENTS,
    JSON,
    LOG_HEADER,
    MSGPACK,
    NAMESPACE_HEADER,
    OCTETS,
    RECORDS,
    Append,
    Blobs,
    Deltas,
    Digests,
    Failure,
    Listeners,
    Sweep,
)

__all__ = ["document"]

_ABOUT = """\
Threads of Clew over HTTP. A thread id stands in a path as base64url of its UTF-8, without padding; so does a namespace
in the header `clew-namespace`. Bodies are msgpack; small ones may be JSON. Streams are records: four bytes of length,
big-endian, then so many bytes, and FFFFFFFF at the end."""

_EVENTS = """\
A stream that ends only with the thread, the service or the client. An event without a name has the number of a frame as
its id, and `{"frame", "entries"}` as data; `sealed` instead of `entries` if the service has no key for them. `thread` has
the status and the number of the log. `delta` has a piece of a response that is being written, `dropped` how many messages
with such pieces this reader missed. `gone` is the last event, of a thread that was deleted or replaced."""

_NAMES = {"type": "string", "pattern": "^[A-Za-z0-9_-]+$", "minLength": 2, "maxLength": 1366}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_NUMBER = {"type": "integer", "minimum": 0}
_BYTES = {"type": "string", "format": "binary"}


def document() -> dict[str, Any]:
    """Return the whole OpenAPI document, ready to be written as JSON. It lists exactly the paths that the service has."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Clew", "version": __version__, "description": _ABOUT},
        "security": [{"token": []}],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths() -> dict[str, Any]:
    thread = _parameter("thread", "path", _NAMES)
    digest = _parameter("digest", "path", _DIGEST)
    head = {**_both("Head"), "headers": _headers("etag", LOG_HEADER)}
    tagged = {"description": "Appended, or it was appended before.", "headers": _headers("etag")}
    start, stop = _parameter("start", "query", _NUMBER), _parameter("stop", "query", _NUMBER)
    age = _parameter("untouched_for_micros", "query", _NUMBER)
    match = _parameter("if-match", "header", {"type": "string"})
    none = _parameter("if-none-match", "header", {"type": "string"})
    after, log = _parameter("after", "query", _NUMBER), _parameter("log", "query", _NUMBER)
    entries = _parameter("entries", "query", {"type": "integer", "minimum": 0, "maximum": 1})
    last = _parameter("last-event-id", "header", {"type": "string", "pattern": "^[0-9]{0,15}$"})
    done = {"description": "Done."}
    return {
        "/v1/threads/{thread}": {
            "get": _operation("read", "The head of a thread", [thread, none], head, absent=True, unchanged=True),
            "delete": _operation("delete", "Delete a thread", [thread], done),
        },
        "/v1/threads/{thread}/frames": {
            "get": _operation("read", "Frames in order", [thread, start, stop], _stream("the frames")),
            "post": _operation(
                "append", "Append frames", [thread, match, none], tagged, _body("Append", MSGPACK), conditional=True
            ),
        },
        "/v1/threads/{thread}/events": {
            "get": _operation(
                "read",
                "What happens to a thread, as server-sent events",
                [thread, after, log, entries, last],
                {"description": _EVENTS, "content": {EVENTS: {"schema": {"type": "string"}}}},
                absent=True,
            )
        },
        "/v1/threads/{thread}/deltas": {
            "post": _operation(
                "append",
                "Pass on words that a model is writing",
                [thread],
                _both("Listeners"),
                _body("Deltas", MSGPACK, JSON),
            )
        },
        "/v1/threads/{thread}/refs": {
            "get": _operation("read", "The blobs that a thread points at", [thread], _both("Digests"))
        },
        "/v1/threads/query": {
            "post": _operation("read", "Heads that match", [], _stream("the heads"), _body("HeadQuery", MSGPACK, JSON))
        },
        "/v1/blobs": {
            "get": _operation("admin", "Blobs that nobody touched", [age], _stream("the digests")),
            "post": _operation("append", "Keep several blobs", [], done, _body("Blobs", MSGPACK)),
        },
        "/v1/blobs/{digest}": {
            "get": _operation(
                "read",
                "One blob",
                [digest, none],
                {"description": "The blob.", "content": {OCTETS: {"schema": _BYTES}}, "headers": _headers("etag")},
                absent=True,
                unchanged=True,
            ),
            "put": _operation(
                "append", "Keep a blob", [digest], done, {"required": True, "content": {OCTETS: {"schema": _BYTES}}}
            ),
        },
        "/v1/blobs/get": {
            "post": _operation("read", "Several blobs", [], _stream("the blobs"), _body("Digests", MSGPACK, JSON))
        },
        "/v1/blobs/missing": {
            "post": _operation(
                "read", "Blobs that are not there", [], _both("Digests"), _body("Digests", MSGPACK, JSON)
            )
        },
        "/v1/blobs/delete": {
            "post": _operation("admin", "Delete untouched blobs", [], done, _body("Sweep", MSGPACK, JSON))
        },
        "/healthz": {"get": _probe("Whether the service is up", "text/plain")},
        "/readyz": {"get": _probe("Whether the store answers", "text/plain")},
        "/openapi.json": {"get": _probe("This document", JSON)},
        "/metrics": {"get": {**_probe("Counters for Prometheus", "text/plain"), "security": [{"token": []}]}},
    }


def _operation(
    scope: str,
    summary: str,
    parameters: list[dict[str, Any]],
    success: dict[str, Any],
    body: dict[str, Any] | None = None,
    *,
    absent: bool = False,
    unchanged: bool = False,
    conditional: bool = False,
) -> dict[str, Any]:
    responses = {"200": success, **_failures(400, 401, 403, 405, 429, 500, 503)}
    if unchanged:
        responses["304"] = {"description": "It is what if-none-match says.", "headers": _headers("etag")}
    if absent:
        responses |= _failures(404)
    if body:
        responses |= _failures(408, 413)
    if conditional:
        responses |= _failures(409, 412)
    namespace = _parameter(NAMESPACE_HEADER, "header", {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"})
    described = {
        "summary": summary,
        "description": f"Needs the scope `{scope}`.",
        "parameters": [*parameters, namespace],
        "responses": responses,
    }
    return {**described, "requestBody": body} if body else described


def _probe(summary: str, kind: str) -> dict[str, Any]:
    success = {"description": "It is so.", "content": {kind: {"schema": {} if kind == JSON else {"type": "string"}}}}
    return {
        "summary": summary,
        "security": [],
        "responses": {"200": success, **_failures(401, 403, 405, 429, 500, 503)},
    }


_MEANINGS = {
    400: "Something in the request that no store could accept.",
    401: "No token, or one that this server does not know.",
    403: "The token lacks the scope.",
    404: "There is no such thing in the token's namespace.",
    405: "There is no such method here.",
    408: "The body did not arrive in time.",
    409: "A blob that is pointed at is not there.",
    412: "The log does not end where the request says.",
    413: "More than the limit.",
    429: "Too many requests, connections or streams with this token, or too much in memory.",
    500: "The store holds something damaged, or the server failed.",
    503: "The store cannot be reached, or the server is shutting down.",
}


def _failures(*statuses: int) -> dict[str, Any]:
    return {
        str(status): {
            "description": _MEANINGS[status],
            "content": {JSON: {"schema": _ref("Failure")}},
            **({"headers": _headers("retry-after")} if status == 429 else {}),
        }
        for status in statuses
    }


def _parameter(name: str, where: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"required": True, "schema": {"type": "string"}} for name in names}


def _both(name: str) -> dict[str, Any]:
    return {"description": f"A {name}.", "content": {kind: {"schema": _ref(name)} for kind in (MSGPACK, JSON)}}


def _stream(what: str) -> dict[str, Any]:
    return {"description": f"Records: {what}.", "content": {RECORDS: {"schema": _BYTES}}}


def _body(name: str, *kinds: str) -> dict[str, Any]:
    return {"required": True, "content": {kind: {"schema": _ref(name)} for kind in kinds}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas() -> dict[str, Any]:
    kinds = (Append, Blobs, Deltas, Digests, Failure, Head, HeadQuery, Listeners, Sweep)
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    return {name: _in_msgpack(schema) for name, schema in schemas.items()}


def _in_msgpack(schema: Any) -> Any:
    """Return a JSON schema with its base64 texts replaced by plain bytes, at every depth. msgpack carries bytes as they
    are."""
    if isinstance(schema, dict):
        if schema.get("contentEncoding") == "base64":
            return _BYTES
        return {name: _in_msgpack(value) for name, value in schema.items()}
    return [_in_msgpack(value) for value in schema] if isinstance(schema, list) else schema
