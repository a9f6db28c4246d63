"""Turns errors into HTTP responses: a status code, and a `Failure` as the body."""

from __future__ import annotations

import logging
import traceback
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from clew.checkpointers.http.protocol import JSON, Code, Failure
from clew.errors import ClewError, Conflict, Corrupt, InvalidInput, MissingBlob, NewerFormat, Unavailable
from clew.server.openapi import document

__all__ = ["HANDLERS", "Answer", "Refused", "allowed", "failure_of", "log_failure", "not_allowed", "refusal"]


STATUS: dict[Code, HTTPStatus] = {
    "absent": HTTPStatus.NOT_FOUND,
    "conflict": HTTPStatus.PRECONDITION_FAILED,
    "corrupt": HTTPStatus.INTERNAL_SERVER_ERROR,
    "draining": HTTPStatus.SERVICE_UNAVAILABLE,
    "forbidden": HTTPStatus.FORBIDDEN,
    "internal": HTTPStatus.INTERNAL_SERVER_ERROR,
    "invalid": HTTPStatus.BAD_REQUEST,
    "limited": HTTPStatus.TOO_MANY_REQUESTS,
    "missing_blobs": HTTPStatus.CONFLICT,
    "newer_format": HTTPStatus.INTERNAL_SERVER_ERROR,
    "no_such_path": HTTPStatus.NOT_FOUND,
    "too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "unauthenticated": HTTPStatus.UNAUTHORIZED,
    "unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
}
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
"""A response of the service: its status code, headers and body."""

logger = logging.getLogger("clew.server")


class Refused(Exception):
    """The service refuses a request for a reason of its own, such as a missing scope or a body that is too large."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


def failure_of(error: Exception) -> Failure:
    """Return the `Failure`, a code and a message, that is sent to the client for an error. Errors that only the
    operator can fix are also logged."""
    match error:
        case Refused():
            return Failure(error.code, str(error))
        case InvalidInput():
            return Failure("invalid", str(error))
        case Conflict():
            return Failure("conflict", str(error))
        case MissingBlob():
            return Failure("missing_blobs", str(error), digests=sorted(error.digests))
        case Corrupt():
            log_failure(error)
            return Failure("corrupt", str(error))
        case NewerFormat():
            return Failure("newer_format", str(error), found=error.found, supported=error.supported)
        case Unavailable():
            log_failure(error)
            return Failure("unavailable", "the store behind the server cannot be reached or did not answer")
        case _:
            log_failure(error)
            return Failure("internal", "the server failed; its log says how")


def log_failure(error: BaseException) -> None:
    """Write the class of an error, and the last 8 places in the code through which it came, to the log. The message of
    the error is left out, because it may contain a tenant's data."""
    places = [f"{place.filename}:{place.lineno} {place.name}" for place in traceback.extract_tb(error.__traceback__)]
    logger.error(msgspec.json.encode({"event": "error", "kind": type(error).__name__, "at": places[-8:]}).decode())


def refusal(failure: Failure) -> Answer:
    """Return the HTTP response for a failure: the status code and headers that belong to its code, and the failure as
    JSON."""
    body = msgspec.json.encode(failure)
    headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
    if failure.code == "unauthenticated":
        headers.append((b"www-authenticate", b"Bearer"))
    if failure.retry_after:
        headers.append((b"retry-after", str(failure.retry_after).encode()))
    if failure.code == "draining":
        headers.append((b"connection", b"close"))
    return STATUS[failure.code].value, headers, body


def not_allowed(path: str) -> Answer:
    """Return the response to a request whose path exists but not with the method that was used. It lists the path's
    methods."""
    _, headers, body = refusal(Failure("invalid", f"this path has other methods: {allowed(path)}"))
    return HTTPStatus.METHOD_NOT_ALLOWED.value, [*headers, (b"allow", allowed(path).encode())], body


def _answer(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    failure = failure_of(error)
    return Response(msgspec.json.encode(failure), media_type=JSON, status_code=STATUS[failure.code])


def _of_litestar(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Return the response to an error of Litestar, which routes requests: an unknown path, or a method that the path
    does not have."""
    status = HTTPStatus(error.status_code)
    codes: dict[HTTPStatus, Code] = {HTTPStatus.NOT_FOUND: "no_such_path", HTTPStatus.INTERNAL_SERVER_ERROR: "internal"}
    failure = Failure(codes.get(status, "invalid"), error.detail or status.phrase)
    headers = {"allow": allowed(request.scope["path"])} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
    return Response(msgspec.json.encode(failure), media_type=JSON, status_code=status, headers=headers)


HANDLERS: dict[int | type[Exception], Any] = {
    HTTPException: _of_litestar,
    Refused: _answer,
    ClewError: _answer,
    Exception: _answer,
}


_BY_SEGMENTS = {
    tuple(path.split("/")): ", ".join(sorted(map(str.upper, operations)))
    for path, operations in document()["paths"].items()
}


def allowed(path: str) -> str:
    """Return the HTTP methods of a path, as the header `Allow` lists them. Empty if the service has no such path."""
    given = tuple(path.split("/"))
    if given in _BY_SEGMENTS:
        return _BY_SEGMENTS[given]
    for segments, methods in _BY_SEGMENTS.items():
        pairs = zip(segments, given, strict=False)
        if len(segments) == len(given) and all(wanted == got or wanted.startswith("{") for wanted, got in pairs):
            return methods
    return ""
