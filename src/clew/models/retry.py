"""Makes model calls and repeats those that fail. Turns the errors of the vendors' SDKs into Clew's own, with text that
is safe to show.

This is the only place where model calls are retried. The SDKs' own retries are turned off, because the SDKs do not
notice a stream that breaks off, report nothing while they wait, and would multiply the number of attempts.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

from clew.errors import NOT_CARRIED_OUT, ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from clew.models.base import ModelEvent, ModelRequest, Retrying
from clew.models.redaction import shown

__all__ = [
    "FIRST_PAUSE",
    "LONGEST_PAUSE",
    "LONGEST_WAIT",
    "MAX_RETRIES",
    "Failure",
    "NoCredentials",
    "StreamBroken",
    "StreamFailed",
    "call",
    "read_failure",
]


MAX_RETRIES = 4
FIRST_PAUSE = 0.5
"""The longest pause in seconds before the second attempt. Before each further attempt the longest pause doubles, up to
`LONGEST_PAUSE`."""
LONGEST_PAUSE = 30.0
LONGEST_WAIT = 600.0
"""If a vendor asks to wait more seconds than this, the call is not retried."""

Attempt = Callable[[bool], AsyncGenerator[ModelEvent, None]]
"""A function that makes one attempt at a call and yields its events. Its argument says whether to send the model's
thinking of earlier turns."""


async def call(
    attempt: Attempt,
    request: ModelRequest,
    *,
    model: str,
    max_retries: int = MAX_RETRIES,
    secrets: Callable[[], Iterable[str]] = tuple,
    advice: Callable[[int | None], str] = lambda status: "",
) -> AsyncGenerator[ModelEvent, None]:
    """Make a model call, and make it again if it fails. Yields the events of each attempt; the last event is the
    response of the attempt that succeeds. After an attempt that failed and is to be repeated, a `Retrying` is yielded.
    `attempt` makes one attempt and yields its events; its argument says whether to send the thinking of earlier turns.

    A call is retried, at most `max_retries` times, after the HTTP statuses 408, 409, 429 and 5xx, timeouts, failed
    connections, and streams that end without their end event. The pause before a retry is the one that the vendor asks
    for in `Retry-After`. If the vendor asks for more than `LONGEST_WAIT` (600) seconds, the call is not retried. If the
    vendor asks for none, the pause doubles each time, with a random part so that many callers spread out. All other
    errors are raised at once.

    A vendor may refuse the model's thinking of earlier turns because the model, the account or the conversation before
    that thinking changed. Then the next attempt leaves the thinking out, which is reported as a `Retrying` but not
    counted as a retry.

    Each further attempt begins only after `request.before_retry` has returned. If `before_retry` raises an error, the
    call ends with this error.

    Errors are raised as `ModelError`, which names the `model`. The error's `is_free` is True only if every attempt was
    certainly refused, so that none was charged. The error's text has no quotations from the `request`, and none of the
    keys that `secrets` returns. `advice` returns what the user should check after an HTTP status. The SDK's error is
    not attached as the cause, because it holds the request with its key and its messages.
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
        if request.before_retry is not None:
            await request.before_retry()


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
    """Return the error to raise for a call whose last attempt ended in this failure: `ContextTooLong`,
    `ModelUnavailable` or, for all other failures, `ModelRefused`.

    The error's message has the texts `model` and `reason`, and after them what `advice` returns for the HTTP status,
    except for `ContextTooLong`. `attempts` is how many attempts were made in all. `is_free` says that certainly none of
    them was charged.
    """
    status = failure.status
    if failure.kind == "too-long":
        return ContextTooLong(model, reason, status=status, is_free=is_free)
    if failure.kind == "unavailable":
        why = ". ".join(filter(None, [reason, advice(status).rstrip(".")]))
        return ModelUnavailable(model, why, attempts=attempts, status=status, is_free=is_free)
    return ModelRefused(model, reason, advice(status), status=status, is_free=is_free)


def _pause(retries: int) -> float:
    """Return the seconds to wait before the next attempt at a call. `retries` is how many retries were made so far. The
    result is a random value between half of the longest pause and all of it. The longest pause is half a second before
    the first retry, and doubles with each further one, up to `LONGEST_PAUSE` (30 seconds)."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**retries)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret hangs on it


def _reason(failure: Failure, request: ModelRequest, secrets: Iterable[str]) -> str:
    """Return the reason of a failure as a text, with the vendor's own words made safe to show: without keys, above all
    those in `secrets`, and without quotations from the request. For very long conversations this takes a second, so the
    caller does it only for the error that is raised in the end."""
    words = shown(failure.message, request, secrets).rstrip(".") if failure.message else ""
    waiting = "" if (failure.after or 0) <= LONGEST_WAIT else f"; it asks to wait {failure.after:.0f} s"
    return failure.what + (f": {words}" if words else "") + waiting


_HTTP_PACKAGES = ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp")
_AGAIN = (408, 409, 429)
_STATUS_OF = {
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    "prompt_blocked": 400,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "API_KEY_INVALID": 401,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""The HTTP status that an error code inside a stream stands for. The stream's own status does not help: it was 200,
because the response had already begun."""
_SPENT = (
    "insufficient_quota",
    "billing_hard_limit_reached",
    "enforced_spend_limit_reached",
    "billing_error",
    "daily_quota",
)
"""Error codes with HTTP status 429 for which waiting does not help, because the account has used up its credit or
limit."""
_FILTERED = ("content_filter", "content_policy_violation")
"""Error codes of a content filter that has read the prompt and refuses it. Some vendors charge for that although they
answer with status 400."""
_TOO_LONG_CODES = (
    "context_length_exceeded",
    "context_window_exceeded",
    "exceed_context_size_error",
    "prompt_too_long",
    "request_too_large",
)
_TOO_LONG = re.compile(
    r"prompt is too long"
    r"|input is too long"
    r"|too many input tokens"
    r"|exceeds? (?:the |this |its )?(?:model'?s? |available |maximum )*(?:context|input token)"
    r"|exceeds? (?:the )?maximum (?:prompt|input|number of (?:input )?tokens)"
    r"|maximum (?:context|prompt) length"
    r"|(?:context|prompt) (?:length|window|size|limit)[^.]{0,60} exceed"
    r"|too large for model"
    r"|reduce the length of (?:the messages|either one|your prompt)"
)
_THINKING_CODES = ("invalid_encrypted_content", "thinking_signature_invalid")
_THINKING = re.compile(
    r"in (?:redacted_)?thinking block"
    r"|thinking block[^.]{0,60}(?:bound|cannot be modified)"
    r"|thinking or redacted_thinking blocks"
    r"|encrypted content [^.]{0,80}could not be"
    r"|without its required '?reasoning'? item"
    r"|items are not persisted"
    r"|thought[_ ]signature"
)
_CODE = re.compile(r"[\w.-]{1,64}")
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")


class StreamBroken(Exception):
    """Raised if the stream of a model's response ends, or becomes unreadable, before the vendor has said that the
    response is complete."""


class NoCredentials(Exception):
    """Raised if there is no key or other credential with which a request to a vendor could be sent."""


class StreamFailed(Exception):
    """Raised if the vendor reports, inside the stream of a response, that the response failed. `body` is the vendor's
    error report, from JSON."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = dict(body)
        super().__init__("the response failed")


class Failure(NamedTuple):
    """What an error means that ended one attempt at a model call: its kind, its texts, whether to try again, and
    whether the attempt cost anything."""

    kind: Literal["unavailable", "too-long", "thinking", "refused"]
    """`unavailable`: the vendor cannot be reached or does not work now. `too-long`: the conversation is too long for
    the model. `thinking`: the vendor refuses thinking of earlier turns, which is bound to a model, a conversation or an
    account. `refused`: anything else."""
    what: str
    """The failure in Clew's words, such as the HTTP status and the vendor's error code. Safe to show."""
    message: str = ""
    """The failure in the vendor's words, which may quote keys or the conversation. Not safe to show as it is."""
    status: int | None = None
    again: bool = False
    after: float | None = None
    """The seconds to wait that the vendor asks for; None if it does not say."""
    is_free: bool = False
    """Whether the attempt certainly cost nothing: the vendor refused it with an HTTP status that is not charged, or it
    was never sent."""


def read_failure(error: Exception) -> Failure | None:
    """Return what `error`, raised by an attempt at a model call, means: for example, whether to try again. Returns None
    if the error comes from a mistake in the code and not from the call; the caller then has to raise it as it is."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, StreamBroken):
        return Failure("unavailable", str(error), again=True)
    if isinstance(error, NoCredentials):
        return Failure("refused", "no credentials were found", str(error), 401, is_free=True)
    if "APITimeoutError" in kinds or "TimeoutException" in kinds or isinstance(error, TimeoutError):
        return Failure("unavailable", "a timeout", again=True)
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) or "UnknownApiResponseError" in kinds:
        return Failure("unavailable", "a stream that does not have the API's format", again=True)
    if "APIConnectionError" in kinds or isinstance(error, ConnectionError) or _is_http(error):
        return Failure("unavailable", "a connection that failed or broke off", again=True)
    if isinstance(error, StreamFailed) or "APIError" in kinds:
        return _read_said(error)
    if kinds & {"OpenAIError", "AnthropicError", "GoogleAuthError"} or _is_keyless(error):
        return _read_sdk(error)
    return None


def _is_http(error: Exception) -> bool:
    return any(cls.__module__.partition(".")[0] in _HTTP_PACKAGES for cls in type(error).__mro__)


def _read_sdk(error: Exception) -> Failure:
    """Explain an error that the vendor's SDK raised without sending a request, as a `Failure`. The cause of such an
    error is in the SDK's settings, mostly a missing key."""
    said = f"{[cls.__name__ for cls in type(error).__mro__]} {error}".lower()
    about_keys = any(word in said for word in ("credential", "api_key", "authentication"))
    what = "no credentials were found" if about_keys else "the SDK did not make the request"
    return Failure("refused", what, str(error), 401 if about_keys else None, is_free=about_keys)


def _is_keyless(error: Exception) -> bool:
    """Return whether this is the `TypeError` that Anthropic's SDK raises when it has no key."""
    return isinstance(error, TypeError) and "authentication method" in str(error)


def _read_said(error: Exception) -> Failure:
    """Return a `Failure` for an error that the vendor reported, in place of a response or inside its stream: what it
    means, whether to try again, and whether the attempt was free."""
    body: Any = getattr(error, "body", None)
    body = getattr(error, "details", None) if body is None else body
    codes, message = _said(body)
    said = _http_status(error)
    status = said or _status_in(body) or next((_STATUS_OF[code] for code in codes if code in _STATUS_OF), None)
    status = 401 if "API_KEY_INVALID" in codes else status
    what = ", ".join([*([f"HTTP {said}"] if said else []), *codes[:1]]) or "an error in the stream"
    is_refused = said is not None and (said < 400 or said in NOT_CARRIED_OUT)
    is_free = is_refused and not any(code in _FILTERED for code in codes)
    failure = _read_meaning(error, codes, message, status, what)
    if failure.kind == "unavailable" and failure.after is None:
        failure = failure._replace(after=_google_wait(body))
    return failure._replace(is_free=is_free)


def _status_in(body: Any) -> int | None:
    """Return the HTTP status that a vendor gives as a number in its error report, as OpenRouter and Google do inside a
    stream; None if there is none."""
    body = body["error"] if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping) else body
    code = body.get("code") if isinstance(body, Mapping) else None
    return code if isinstance(code, int) and 400 <= code < 600 else None


def _http_status(error: Exception) -> int | None:
    """Return the HTTP status with which the vendor refused a request, or None if the error came later, inside the
    stream of a response. A redirect that was not followed counts as a refusal."""
    named: Any = getattr(error, "status_code", None)
    if named is None:
        named = getattr(getattr(error, "response", None), "status_code", None)
        named = getattr(getattr(error, "response", None), "status", None) if named is None else named  # of aiohttp
    return named if isinstance(named, int) and named >= 300 else None


def _read_meaning(error: Exception, codes: list[str], message: str, status: int | None, what: str) -> Failure:
    plain = message.lower().replace("`", "")
    if any(code in _THINKING_CODES for code in codes) or (status != 500 and _THINKING.search(plain)):
        return Failure("thinking", what, message, status)
    if any(code in _TOO_LONG_CODES for code in codes) or status == 413:
        return Failure("too-long", what, message, status)
    if status not in _AGAIN and _TOO_LONG.search(plain):
        return Failure("too-long", what, message, status)
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    advised = headers.get("x-should-retry")
    if any(code in _SPENT for code in codes):
        return Failure("refused", what, message, status)
    if status is None or status >= 500 or status in _AGAIN:
        return Failure("unavailable", what, message, status, advised != "false", _wait(headers))
    if advised == "true":
        return Failure("unavailable", what, message, status, True, _wait(headers))
    return Failure("refused", what, message, status)


def _said(body: Any) -> tuple[list[str], str]:
    """Return two things from a vendor's error report: a list of the error codes, the most specific first, and the
    message. Both are empty if `body` is not a JSON object, for example because it is a proxy's error page."""
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        body = body["error"]
    if not isinstance(body, Mapping):
        return [], ""
    details = body.get("details")
    found = [details.get("error_code") if isinstance(details, Mapping) else None, body.get("code"), body.get("type")]
    if isinstance(details, list):
        found += _google_codes(details)
    found.append(body.get("status"))
    codes = [code for code in found if isinstance(code, str) and code != "error" and _CODE.fullmatch(code)]
    message = next((body[key] for key in ("message", "detail", "error") if isinstance(body.get(key), str)), "")
    return codes, message


def _google_codes(details: list[Any]) -> list[Any]:
    """Return the error codes in `details`, a list in Google's error report. If the quota of a whole day is used up,
    `daily_quota` is among the codes. Some of the returned items may be None."""
    found: list[Any] = []
    for detail in details:
        if isinstance(detail, Mapping):
            found.append(detail.get("reason"))
            if any("perday" in quota.lower() for quota in _google_quotas(detail)):
                found.append("daily_quota")
    return found


def _google_quotas(detail: Mapping[str, Any]) -> list[str]:
    violations = detail.get("violations")
    named = [one.get("quotaId") for one in violations or () if isinstance(one, Mapping)]
    return [one for one in named if isinstance(one, str)]


def _google_wait(body: Any) -> float | None:
    """Return the seconds to wait that Google asks for in its error report, written like `12.5s`; None if it does not
    ask."""
    error = body.get("error") if isinstance(body, Mapping) else None
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details if isinstance(details, list) else ():
        asked = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(asked, str) and (found := _SECONDS.fullmatch(asked)):
            return float(found[1])
    return None


def _wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that a vendor asks for in the headers of its answer, as milliseconds, seconds or a
    date; None if it does not ask."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name) or "") * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        until = parsedate_to_datetime(headers.get("retry-after") or "")
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
