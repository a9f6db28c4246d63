"""Why a prompt was not answered, from what Codex says of it."""

from __future__ import annotations

import re
from typing import Any

from clew.errors import NOT_CARRIED_OUT
from clew.providers.base import values
from clew.providers.codex.rollout import record_of
from clew.providers.happenings import Failure

__all__ = ["from_stderr", "is_refused", "kind_of", "words_of"]

_KINDS: dict[str, Failure] = {
    "unauthorized": "login",
    "usage_limit_exceeded": "limit",
    "rate_limit_exceeded": "limit",
    "context_window_exceeded": "context",
}
"""By what Codex writes into its rollout."""
_CODES: dict[str, Failure] = {
    "invalid_api_key": "login",
    "insufficient_quota": "limit",
    "rate_limit_exceeded": "limit",
    "usage_limit_reached": "limit",
    "context_length_exceeded": "context",
}
"""By the vendor's own code, in the body of a refusal that Codex shows as it is."""
_STATUSES: dict[int, Failure] = {401: "login", 403: "login", 429: "limit"}
_STATUS = re.compile(r"(?:unexpected status|last status:) (\d{3})\b")
_ERROR = re.compile(r"^Error: (?:thread/\w+: )?(?:thread/\w+ failed: )?(.+?)(?: \(code -?\d+\).*)?$", re.MULTILINE)
_MOST = 600


def kind_of(message: str, info: Any) -> Failure:
    """`message` is the error of a turn, `info` what the rollout says of it: a name, or a name with an HTTP status."""
    if isinstance(info, str) and info in _KINDS:
        return _KINDS[info]
    status = _status_in(info)
    if status is not None:
        return _STATUSES.get(status, "failed")
    refusal = _refusal(message)
    for code in (refusal.get("code"), refusal.get("type")):
        if isinstance(code, str) and code in _CODES:
            return _CODES[code]
    found = _STATUS.search(message)
    if found:
        return _STATUSES.get(int(found.group(1)), "failed")
    return "login" if message.startswith("Missing environment variable") else "failed"


def is_refused(message: str, info: Any) -> bool:
    """Whether the vendor did not carry the request out. Codex says the status, or for a 400 it shows the vendor's answer."""
    status = _status_in(info)
    if status is None and (found := _STATUS.search(message)):
        status = int(found.group(1))
    return bool(_refusal(message)) or info == "unauthorized" if status is None else status in NOT_CARRIED_OUT


def _status_in(info: Any) -> int | None:
    """The HTTP status that a rollout names, if it names one."""
    statuses = (values(detail).get("http_status_code") for detail in values(info).values())
    return next((status for status in statuses if isinstance(status, int)), None)


def words_of(message: str) -> str:
    """The error of a turn, without the JSON it may come in."""
    said = _refusal(message).get("message")
    return _short(said if isinstance(said, str) and said else message)


def _refusal(message: str) -> dict[str, Any]:
    return values((record_of(message.encode(errors="replace")) or {}).get("error"))


def from_stderr(status: int, stderr: str) -> tuple[Failure, str]:
    """What a program came to that never got as far as a turn's end: its last error, or its last words."""
    errors = _ERROR.findall(stderr)
    if errors:
        reason = str(errors[-1])
        absent = reason.startswith("no rollout found") or reason.endswith("to unarchive it first.")
        return "session" if absent else "failed", _short(reason)
    lines = [row for row in stderr.splitlines() if row.strip() and not row.startswith("WARNING: ")]
    said = f": {_short(lines[-1])}" if lines else ""
    if status < 0:
        return "stopped", f"ended by signal {-status}{said}"
    return "stopped", f"ended with status {status} before its turn did{said}"


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MOST else text[:_MOST] + " …"
