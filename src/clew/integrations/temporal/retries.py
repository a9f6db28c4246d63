"""Which errors of the activity Temporal tries again, and after how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.exceptions import ActivityError, ApplicationError, ApplicationErrorCategory

from clew import errors
from clew.errors import (
    ClewError,
    Conflict,
    LeaseLost,
    ModelUnavailable,
    NewerFormat,
    ProviderLimited,
    ThreadBusy,
    Unavailable,
)
from clew.integrations.temporal.payloads import Failure

__all__ = ["as_failure", "error_of", "failure_of", "is_final"]

_LATER = (Conflict, ModelUnavailable, Unavailable)
_BUSY = (LeaseLost, NewerFormat)
_WHILE_BUSY = timedelta(seconds=30)


def is_final(error: ClewError) -> bool:
    """Return whether the same work would fail again with this error, whichever worker tries it."""
    return not isinstance(error, (*_LATER, *_BUSY, ProviderLimited, ThreadBusy))


def _delay(error: ClewError) -> timedelta | None:
    """Return how long to wait before the work is tried again. None stands for the pauses of the retry policy, which
    grow with each attempt.

    A worker that has lost a thread waits as long as a lease lasts, and so does one whose version of Clew is too old:
    another one may have a newer version.
    """
    if isinstance(error, ThreadBusy):
        return timedelta(seconds=error.expires_in)
    if isinstance(error, _BUSY):
        return _WHILE_BUSY
    if isinstance(error, ProviderLimited) and error.until is not None:
        return max(timedelta(seconds=1), error.until - datetime.now(UTC))
    return None


def as_failure(error: ClewError) -> ApplicationError:
    """Return the error of Temporal with which the activity fails because of `error`. It keeps the class, the message and
    the plain attributes, from which `error_of` makes the same error for the client. One that will be tried again counts
    as benign: Temporal logs it as a detail, and Clew as a warning."""
    plain = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | None)}
    return ApplicationError(
        str(error),
        plain,
        type=type(error).__name__,
        non_retryable=is_final(error),
        next_retry_delay=_delay(error),
        category=ApplicationErrorCategory.UNSPECIFIED if is_final(error) else ApplicationErrorCategory.BENIGN,
    )


def failure_of(letter: str, failed: ActivityError) -> Failure:
    """Return why the activity failed for good, for the letter that it worked on."""
    cause = failed.cause
    if isinstance(cause, ApplicationError):
        attributes: Any = cause.details[0] if cause.details else None
        name, message = cause.type or "ClewError", cause.message
        return Failure(letter, name, message, attributes if isinstance(attributes, dict) else {})
    return Failure(letter, "ClewError", str(cause or failed))


def error_of(failure: Failure) -> ClewError:
    """Return the error that a failure stands for, as the agent raised it. One that is not Clew's becomes a `ClewError`
    whose message begins with the name of its class."""
    kind = getattr(errors, failure.error, None) if failure.error in errors.__all__ else None
    if kind is None:
        return ClewError(f"{failure.error}: {failure.message}")
    error: ClewError = errors.rebuild(kind, (failure.message,), dict(failure.attributes))
    return error
