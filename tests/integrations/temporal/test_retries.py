"""What becomes of each error: tried again and when, or told to the client as it was raised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, RetryState

from clew import errors
from clew.errors import (
    ClewError,
    Conflict,
    ContextTooLong,
    Corrupt,
    InvalidInput,
    LeaseLost,
    ModelRefused,
    ModelUnavailable,
    NewerFormat,
    ProviderLimited,
    ThreadBusy,
    Unavailable,
    UsageError,
)
from clew.integrations.temporal.payloads import Failure
from clew.integrations.temporal.retries import as_failure, error_of, failure_of

FINAL = [
    InvalidInput("a bad id"),
    UsageError("closed"),
    ModelRefused("m", "a bad key"),
    ContextTooLong("m", "too long"),
    Corrupt("a byte"),
]
LATER = [
    (Unavailable("down"), None),
    (ModelUnavailable("m", "down", attempts=3), None),
    (Conflict("t", "moved"), None),
    (ThreadBusy("t", "another", 17.5), 17.5),
    (LeaseLost("t", "another"), 30),
    (NewerFormat("a frame", 9, 8), 30),
    (ProviderLimited("toy", "quota"), None),
]


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
def test_an_error_that_would_come_again_is_not_tried_again(error: ClewError) -> None:
    assert as_failure(error).non_retryable


@pytest.mark.parametrize(("error", "after"), LATER, ids=lambda value: type(value).__name__)
def test_an_error_that_may_pass_is_tried_again_when_it_may_have_passed(error: ClewError, after: float | None) -> None:
    failure = as_failure(error)
    assert not failure.non_retryable
    assert failure.next_retry_delay == (None if after is None else timedelta(seconds=after))


def test_a_limit_of_a_provider_is_waited_out() -> None:
    failure = as_failure(ProviderLimited("toy", "quota", until=datetime.now(UTC) + timedelta(hours=2)))
    assert failure.next_retry_delay is not None
    assert timedelta(minutes=119) < failure.next_retry_delay <= timedelta(hours=2)
    over = as_failure(ProviderLimited("toy", "quota", until=datetime.now(UTC) - timedelta(hours=2)))
    assert over.next_retry_delay == timedelta(seconds=1)


def test_every_error_is_decided() -> None:
    known = {error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, ClewError)}
    later = {type(error) for error, _ in LATER}
    final = {name.__name__ for name in known if not any(issubclass(name, one) for one in later)}
    assert final == {
        "ClewError", "ContextTooLong", "Corrupt", "InvalidInput", "MissingBlob", "MissingExtra", "ModelError",
        "ModelRefused", "NotLoggedIn", "NotSealed", "ProviderError", "ProviderMissing", "ProviderOutdated",
        "SessionNotFound", "ThreadNotFound", "UsageError", "WrongKey",
    }  # fmt: skip


def told(error: ApplicationError) -> ClewError:
    """What a client raises for this error of the activity."""
    failed = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="",
        activity_type="",
        activity_id="",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    failed.__cause__ = error
    return error_of(failure_of("p", failed))


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
def test_a_client_raises_the_error_that_the_agent_raised(error: ClewError) -> None:
    failure = as_failure(error)
    found = told(ApplicationError(failure.message, *failure.details, type=failure.type))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert getattr(found, "model", None) == getattr(error, "model", None)


def test_an_error_that_is_not_of_clew_is_named() -> None:
    assert str(told(ApplicationError("no such key", type="KeyError"))) == "KeyError: no such key"
    assert type(error_of(Failure("p", "rebuild", "odd"))) is ClewError
