"""Turns errors into HTTP responses: a status code, and a `Failure` (an error code and a message) as the body."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from http import HTTPStatus

import msgspec

from clew._runtime.files import is_full
from clew.checkpointers.http.protocol import JSON, Code, Failure
from clew.errors import Conflict, Corrupt, InvalidInput, MissingBlob, NewerFormat, Unavailable
from clew.server.logs import places
from clew.server.response import Response

__all__ = [
    "STATUS",
    "Refused",
    "WrongMethod",
    "error_response",
    "failure_of",
    "log_failure",
    "refusal",
    "unavailability",
]


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
    "too_slow": HTTPStatus.REQUEST_TIMEOUT,
    "unauthenticated": HTTPStatus.UNAUTHORIZED,
    "unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
}

logger = logging.getLogger("clew.server")


class Refused(Exception):
    """Raised if the service refuses a request for a reason of its own, such as a missing scope or a body that is too
    large."""

    def __init__(self, code: Code, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.code: Code = code
        self.retry_after = retry_after
        """The seconds to wait before the same request may succeed. 0 if that is not known."""


class WrongMethod(Refused):
    """Raised if the service has routes for the path of a request, but none for its HTTP method. `methods` are the
    methods that the path has."""

    def __init__(self, methods: Iterable[str]) -> None:
        self.methods = sorted(methods)
        super().__init__("invalid", f"this path has other methods: {', '.join(self.methods)}")


def failure_of(error: Exception) -> Failure:
    """Return the `Failure`, a code and a message, that is sent to the client for an error. Errors that only the
    operator can fix are also logged."""
    match error:
        case Refused():
            return Failure(error.code, str(error), retry_after=error.retry_after)
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
            return Failure("unavailable", unavailability(error))
        case _:
            log_failure(error)
            return Failure("internal", "the server failed; its log says how")


def log_failure(error: BaseException) -> None:
    """Write an error to the log: its class, and the last 8 lines of its traceback as file, line number and function.
    The message of the error is left out, because it may contain a tenant's data. If the disk is full, the log says
    so."""
    entry: dict[str, object] = {"event": "error", "kind": type(error).__name__, "at": places(error)}
    if is_full_disk(error):
        entry["reason"] = FULL_DISK
    logger.error(msgspec.json.encode(entry).decode())


FULL_DISK = "the disk of the store behind the server is full"
_SAID = ("disk is full", "disk full", "disk quota", "no space left")


def is_full_disk(error: BaseException | None) -> bool:
    """Return whether an error means that a store could not write because its disk is full. If the error does not say so
    itself, the errors that caused it are looked at."""
    while error is not None:
        if is_full(error) or (isinstance(error, Unavailable) and any(said in str(error).lower() for said in _SAID)):
            return True
        error = error.__cause__
    return False


def unavailability(error: BaseException) -> str:
    """Return the message for a client whose request failed because the store could not be reached or could not write.
    The words of the error itself are left out, because they name files and hosts of the operator."""
    if is_full_disk(error):
        return f"{FULL_DISK}; nothing stored was harmed. Its operator has to free some space"
    return "the store behind the server cannot be reached or did not answer"


def refusal(failure: Failure) -> Response:
    """Return the HTTP response for a failure: the status code and headers that belong to its code, and the failure as
    JSON."""
    headers = {}
    if failure.code == "unauthenticated":
        headers["www-authenticate"] = "Bearer"
    if failure.retry_after:
        headers["retry-after"] = str(failure.retry_after)
    if failure.code in ("draining", "too_slow"):
        headers["connection"] = "close"
    return Response(msgspec.json.encode(failure), JSON, status=STATUS[failure.code], headers=headers)


def error_response(_: object, error: Exception) -> Response:
    """Return the HTTP response for an error that a route of the API raised. The first argument, the request, is not
    needed; it is there because the router passes it."""
    failure = failure_of(error)
    if isinstance(error, WrongMethod):
        allow = {"allow": ", ".join(error.methods)}
        return Response(msgspec.json.encode(failure), JSON, status=HTTPStatus.METHOD_NOT_ALLOWED, headers=allow)
    return refusal(failure)
