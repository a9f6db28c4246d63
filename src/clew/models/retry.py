"""Retries model calls, and turns the errors of the vendors' SDKs into Clew's own, with text that is safe to show.

This is the only place where calls are retried. The SDKs' own retries are turned off: they do not notice a stream that
breaks off, report nothing while they wait, and would multiply the number of attempts.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

from clew.errors import NOT_CARRIED_OUT, ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from clew.messages import Block, File, Image, Json, Opaque, Text, Thinking, ToolCall, ToolResult
from clew.models.base import ModelEvent, ModelRequest, Retrying

__all__ = [
    "FIRST_PAUSE",
    "LONGEST_PAUSE",
    "LONGEST_WAIT",
    "MAX_RETRIES",
    "Failure",
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
    for in `Retry-After`. If it asks for more than `LONGEST_WAIT` seconds, the call is not retried. If it asks for none,
    the pause doubles each time, with a random part so that many callers spread out. All other errors are raised at
    once.

    A vendor may refuse thinking of earlier turns because the model, the account or the conversation before it changed.
    Then the next attempt leaves the thinking out, which is reported as a `Retrying` but not counted as a retry.

    Each further attempt begins only after `request.before_retry` has returned. If that raises, the call ends with its
    error.

    Errors are raised as `ModelError`, which names the `model`. Its `is_free` is True only if every attempt was
    certainly refused, so that none was charged. Its text has no quotations from the `request`, and none of the keys
    that `secrets` returns. `advice` returns what the user should check after an HTTP status. The SDK's error is not
    attached as the cause, because it holds the request with its key and its messages.
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

    Its message has the texts `model` and `reason`, and for `ModelRefused` what `advice` returns for the HTTP status.
    `attempts` is how many attempts were made in all. `is_free` says that certainly none of them was charged.
    """
    status = failure.status
    if failure.kind == "too-long":
        return ContextTooLong(model, reason, status=status, is_free=is_free)
    if failure.kind == "unavailable":
        return ModelUnavailable(model, reason, attempts=attempts, status=status, is_free=is_free)
    return ModelRefused(model, reason, advice(status), status=status, is_free=is_free)


def _pause(retries: int) -> float:
    """Return the seconds to wait before the next attempt. `retries` is how many retries were made before. The result is
    a random value between half of the longest pause and all of it. The longest pause doubles with each retry, up to
    `LONGEST_PAUSE`."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**retries)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret hangs on it


def _reason(failure: Failure, request: ModelRequest, secrets: Iterable[str]) -> str:
    """Return the reason of a failure as a text, with the vendor's own words made safe to show: without keys and without
    quotations from the request. For very long conversations this takes a second, so it is done only for the error that
    is raised."""
    words = shown(failure.message, request, secrets).rstrip(".") if failure.message else ""
    waiting = "" if (failure.after or 0) <= LONGEST_WAIT else f"; it asks to wait {failure.after:.0f} s"
    return failure.what + (f": {words}" if words else "") + waiting


_HTTP_PACKAGES = ("httpx", "httpx2", "httpcore", "httpcore2")
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
}
"""The HTTP status that an error code inside a stream stands for. The stream's own status does not help: it was 200,
because the response had already begun."""
_SPENT = ("insufficient_quota", "billing_hard_limit_reached", "enforced_spend_limit_reached", "billing_error")
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
)
_CODE = re.compile(r"[\w.-]{1,64}")


class StreamBroken(Exception):
    """Raised if the stream ends, or becomes unreadable, before the vendor has said that the response is complete."""


class StreamFailed(Exception):
    """Raised if the vendor reports inside the stream that the response failed. `body` is that report."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = dict(body)
        super().__init__("the response failed")


class Failure(NamedTuple):
    """What the error of one attempt at a call means: its kind, its texts, whether to try again, and whether it cost
    anything."""

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
    """Classify an error that an attempt at a call raised. Returns None if it is a programming error and not a failed
    call."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, StreamBroken):
        return Failure("unavailable", str(error), again=True)
    if "APITimeoutError" in kinds or "TimeoutException" in kinds or isinstance(error, TimeoutError):
        return Failure("unavailable", "a timeout", again=True)
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return Failure("unavailable", "a stream that does not have the API's format", again=True)
    if "APIConnectionError" in kinds or isinstance(error, ConnectionError) or _is_http(error):
        return Failure("unavailable", "a connection that failed or broke off", again=True)
    if isinstance(error, StreamFailed) or "APIError" in kinds:
        return _read_said(error)
    if kinds & {"OpenAIError", "AnthropicError"} or _is_keyless(error):
        return _read_sdk(error)
    return None


def _is_http(error: Exception) -> bool:
    return any(cls.__module__.partition(".")[0] in _HTTP_PACKAGES for cls in type(error).__mro__)


def _read_sdk(error: Exception) -> Failure:
    """Classify an error that the SDK raised without sending a request. It is about the SDK's settings, mostly a missing
    key."""
    said = f"{[cls.__name__ for cls in type(error).__mro__]} {error}".lower()
    about_keys = any(word in said for word in ("credential", "api_key", "authentication"))
    what = "no credentials were found" if about_keys else "the SDK did not make the request"
    return Failure("refused", what, str(error), 401 if about_keys else None, is_free=about_keys)


def _is_keyless(error: Exception) -> bool:
    """Return whether this is the error that Anthropic's SDK raises when it has no key."""
    return isinstance(error, TypeError) and "authentication method" in str(error)


def _read_said(error: Exception) -> Failure:
    """Classify an error that the vendor reported, either in place of a response or inside its stream."""
    codes, message = _said(getattr(error, "body", None))
    named: Any = getattr(error, "status_code", None)
    said: int | None = named if isinstance(named, int) and named >= 400 else None
    status = said or next((_STATUS_OF[code] for code in codes if code in _STATUS_OF), None)
    what = ", ".join([*([f"HTTP {said}"] if said else []), *codes[:1]]) or "an error in the stream"
    is_free = said in NOT_CARRIED_OUT and not any(code in _FILTERED for code in codes)
    failure = _read_meaning(error, codes, message, status, what)
    return failure._replace(is_free=is_free)


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
    """Return the error codes in a vendor's error report, the most specific first, and its message. Both are empty if
    `body` is not a JSON object, for example because it is a proxy's error page."""
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        body = body["error"]
    if not isinstance(body, Mapping):
        return [], ""
    details = body.get("details")
    found = [details.get("error_code") if isinstance(details, Mapping) else None, body.get("code"), body.get("type")]
    codes = [code for code in found if isinstance(code, str) and code != "error" and _CODE.fullmatch(code)]
    message = next((body[key] for key in ("message", "detail", "error") if isinstance(body.get(key), str)), "")
    return codes, message


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


_LENGTH = 240
_ECHO = 12
"""If at least this many letters and digits in a row occur both in an error message and in the conversation, they count
as a quotation, which is removed from the message."""
_GAP = "…"
_KEYS = re.compile(
    r"\b(?:sk|pk|rk|ak|gsk|xai|key|token)[-_][\w*.-]{4,}"  # the usual forms of keys
    r"|\bbearer\s+\S+"
    r"|[\w-]*\*{3,}[\w-]*"  # a key whose middle is hidden by asterisks
    r"|(?<=provided: )\S+",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"""(['"`])(.+?)\1""", re.DOTALL)
_OTHER = re.compile(r"[\W_]+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|.)", re.DOTALL)


def shown(message: str, request: ModelRequest, secrets: Iterable[str] = ()) -> str:
    """Return a vendor's error message made safe to show: shortened, without keys, and without quotations from the
    request. `secrets` are keys to remove, beside everything that looks like a key."""
    text = " ".join(_ESCAPE.sub(_unescaped, message[: 2 * _LENGTH]).split())
    for secret in secrets:
        if secret:
            text = text.replace(secret, _GAP)
    text = _KEYS.sub(_GAP, text)
    text = _without_echo(text, "\n".join(_letters(part) for part in _texts_of(request)))
    return text if len(text) <= _LENGTH else text[: _LENGTH - 1].rstrip() + _GAP


def _unescaped(escape: re.Match[str]) -> str:
    """Return the character that an escape sequence such as `\\u0041` in an error message stands for; a space if it has
    no hexadecimal code. Vendors often escape what they quote from the conversation. A quotation has to be decoded so
    that it can be found and removed."""
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else " "


def _without_echo(text: str, said: str) -> str:
    places = [(place, letter) for place, char in enumerate(text) for letter in char.lower() if letter.isalnum()]
    row = "".join(letter for _, letter in places)
    hidden: set[int] = set()
    for start in range(len(row) - _ECHO + 1):
        if row[start : start + _ECHO] in said:
            hidden.update(range(places[start][0], places[start + _ECHO - 1][0] + 1))
    for quoted in _QUOTED.finditer(text):
        inside = _letters(quoted[2])
        if len(inside) > 2 and inside in said:
            hidden.update(range(*quoted.span(2)))
    parts: list[str] = []
    for place, char in enumerate(text):
        if place not in hidden:
            parts.append(char)
        elif place - 1 not in hidden:
            parts.append(_GAP)
    return "".join(parts)


def _letters(text: str) -> str:
    """Return only the letters and digits of a text, in lower case. An error message is compared with the request in
    this form, because a vendor may quote the request with other escapes or line breaks."""
    return _OTHER.sub("", text.lower())


def _texts_of(request: ModelRequest) -> Iterator[str]:
    yield request.system
    for message in request.messages:
        for block in message.content:
            yield from _texts_in(block)


def _texts_in(block: Block) -> Iterator[str]:
    if isinstance(block, (Text, Thinking)):
        yield block.text
    elif isinstance(block, ToolCall):
        yield from _leaves(block.arguments)
    elif isinstance(block, ToolResult):
        for inner in block.content:
            yield from _texts_in(inner)
    elif isinstance(block, (Json, Opaque)):
        yield from _leaves(block.value)
    elif isinstance(block, (Image, File)):
        yield block.url or ""
        yield block.name if isinstance(block, File) else ""


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    elif value is not None and not isinstance(value, (bool, bytes)):
        yield str(value)
