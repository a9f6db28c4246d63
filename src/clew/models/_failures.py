"""What a failed call means: whether to try again, when, and which error it is otherwise.

Both SDKs have the same tree of errors under the same names, and raise those of their HTTP client here and there. They
are told apart by name, so that this module needs neither.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

from clew.errors import NOT_CARRIED_OUT

__all__ = ["Failure", "StreamBroken", "StreamFailed", "read_failure"]

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
"""The status that an error would have had, if the response had not begun with 200 already."""
_SPENT = ("insufficient_quota", "billing_hard_limit_reached", "enforced_spend_limit_reached", "billing_error")
"""429s that no waiting helps."""
_FILTERED = ("content_filter", "content_policy_violation")
"""Refused by a filter that has read the prompt. Some vendors charge that, although they answer with 400."""
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
    """The stream ended, or made no sense, before the vendor said that the response is complete."""


class StreamFailed(Exception):
    """The vendor said in the stream that the response failed. `body` is what it said."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = dict(body)
        super().__init__("the response failed")


class Failure(NamedTuple):
    kind: Literal["unavailable", "too-long", "thinking", "refused"]
    """`thinking`: the vendor does not take earlier thinking, which is bound to a model, a conversation or an account."""
    what: str
    """In our words: the status, the vendor's code."""
    message: str = ""
    """In the vendor's words, which may quote anything."""
    status: int | None = None
    again: bool = False
    after: float | None = None
    """Seconds that the vendor asks to wait."""
    is_free: bool = False
    """Whether the attempt was refused for certain and cost nothing: by an HTTP status, or before it was sent."""


def read_failure(error: Exception) -> Failure | None:
    """What the error of a call means; None for one that is no failure of a call, but of a program."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, StreamBroken):
        return Failure("unavailable", str(error), again=True)
    if "APITimeoutError" in kinds or "TimeoutException" in kinds or isinstance(error, TimeoutError):
        return Failure("unavailable", "a timeout", again=True)
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return Failure("unavailable", "a stream that is not what the API speaks", again=True)
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
    """What the SDK itself did not like, before there was a request: its settings, and mostly that there is no key."""
    said = f"{[cls.__name__ for cls in type(error).__mro__]} {error}".lower()
    about_keys = any(word in said for word in ("credential", "api_key", "authentication"))
    what = "no credentials were found" if about_keys else "the SDK did not make the request"
    return Failure("refused", what, str(error), 401 if about_keys else None, is_free=about_keys)


def _is_keyless(error: Exception) -> bool:
    """Without any key the Anthropic SDK raises this, when the request is made."""
    return isinstance(error, TypeError) and "authentication method" in str(error)


def _read_said(error: Exception) -> Failure:
    """What the vendor said went wrong, in place of a response or within it."""
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
    """The vendor's codes, the most telling first, and its message. A body that is not JSON, a proxy's page, is neither."""
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
    """Seconds, from the headers that vendors use: in milliseconds, in seconds, or until a date."""
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
