"""Making a call until it succeeds or cannot: the one place where model calls are tried again.

The SDKs' own retries are off. They know nothing of a stream that breaks off, say nothing while they wait, and would
multiply with these.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from clew.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from clew.models._failures import Failure, read_failure
from clew.models._wording import shown
from clew.models.base import ModelEvent, ModelRequest, Retrying

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "LONGEST_WAIT", "MAX_RETRIES", "call"]

MAX_RETRIES = 4
FIRST_PAUSE = 0.5
"""Seconds before the second attempt, and twice as many before each that follows."""
LONGEST_PAUSE = 30.0
LONGEST_WAIT = 600.0
"""A vendor that asks for more patience than this is not waited for."""

Attempt = Callable[[bool], AsyncGenerator[ModelEvent, None]]
"""One attempt; whether to send the thinking of earlier turns."""


async def call(
    attempt: Attempt,
    request: ModelRequest,
    *,
    model: str,
    max_retries: int = MAX_RETRIES,
    secrets: Callable[[], Iterable[str]] = tuple,
    advice: Callable[[int | None], str] = lambda status: "",
) -> AsyncGenerator[ModelEvent, None]:
    """The events of the first attempt that succeeds, each failed one followed by a `Retrying`.

    Tried again: 408, 409, 429, 5xx, timeouts, connections that fail, streams that end without their end event. The
    vendor's `Retry-After` is honoured; else the pause doubles, with chance in it so that many callers spread out. All
    other errors are raised at once. Thinking that the vendor does not take, because the model, the account or the
    conversation before it changed, is left out of the next attempt: that is told, and is not counted as a retry.

    An error says in `is_free` whether every attempt was refused for certain. If one may have been charged, the call may
    have been, whatever the last attempt was answered with.

    Errors carry no cause: the SDKs' hold the request, with its key and its messages.
    """
    number, retries, thinking, is_free = 1, 0, True, True
    while True:
        failure: Failure | None = None
        try:
            async with aclosing(attempt(thinking)) as events:
                async for event in events:
                    yield event
            return
        except Exception as error:
            failure = read_failure(error)
            if failure is None:
                raise
        is_free = is_free and failure.is_free
        if failure.kind == "thinking" and thinking:
            thinking, pause = False, 0.0
            reason = f"{failure.what}: earlier thinking is not taken, and is left out from now on"
        elif failure.kind == "unavailable" and _again(failure, retries, max_retries):
            pause = _pause(retries) if failure.after is None else failure.after
            reason = failure.what
            retries += 1
        else:
            raise _error(failure, _reason(failure, request, secrets()), model, number, advice, is_free)
        number += 1
        yield Retrying(number, pause, reason)
        await asyncio.sleep(pause)


def _again(failure: Failure, retries: int, max_retries: int) -> bool:
    return failure.again and retries < max_retries and (failure.after or 0) <= LONGEST_WAIT


def _error(
    failure: Failure,
    reason: str,
    model: str,
    attempts: int,
    advice: Callable[[int | None], str],
    is_free: bool,
) -> ModelError:
    """The error of a call whose last attempt failed like this. `is_free`: no attempt can have been charged."""
    status = failure.status
    if failure.kind == "too-long":
        return ContextTooLong(model, reason, status=status, is_free=is_free)
    if failure.kind == "unavailable":
        return ModelUnavailable(model, reason, attempts=attempts, status=status, is_free=is_free)
    return ModelRefused(model, reason, advice(status), status=status, is_free=is_free)


def _pause(retries: int) -> float:
    """At least half of it is waited, the rest is chance."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**retries)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret hangs on it


def _reason(failure: Failure, request: ModelRequest, secrets: Iterable[str]) -> str:
    """With the vendor's words, made harmless. That takes a second for the longest conversations: once, at the end."""
    words = shown(failure.message, request, secrets).rstrip(".") if failure.message else ""
    waiting = "" if (failure.after or 0) <= LONGEST_WAIT else f"; it asks to wait {failure.after:.0f} s"
    return failure.what + (f": {words}" if words else "") + waiting
