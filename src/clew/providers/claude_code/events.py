"""Reads what `claude --output-format stream-json` prints, and measures what a run used and cost."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from clew.errors import NOT_CARRIED_OUT, InvalidInput
from clew.log import Usage
from clew.messages import Assistant, Tool, ToolResult
from clew.messages.dialects import from_dialect
from clew.providers.base import Place
from clew.providers.claude_code.rows import SYNTHETIC, decode
from clew.providers.claude_code.storage import locate
from clew.providers.events import Delta, Failed, Failure, Finished, Other, ProviderEvent, Response, Result, Retry
from clew.providers.fields import from_seconds, text, values
from clew.providers.files import lines_from_end
from clew.providers.process import signal_name

__all__ = ["ClaudeReader", "Meter", "Spent"]


_BY_ERROR: dict[str, Failure] = {
    "authentication_failed": "login",
    "oauth_org_not_allowed": "login",
    "billing_error": "limit",
    "rate_limit": "limit",
}
_BY_STATUS: dict[int, Failure] = {401: "login", 402: "limit", 403: "login", 429: "limit"}
_ABORTED = ("aborted_tools", "aborted_streaming")
_REJECTED = "User rejected tool use"
_NO_SESSION = "No conversation found"
_NO_COMMAND = re.compile(r"Unknown command: /\S+|/\S+ isn't available in this environment\.")
_LIMIT_END = re.compile(r"limit reached\|(\d{9,12})\b")
_LONGEST_REASON = 600
_COUNTING = ("thinking_tokens",)
"""Subtypes of printed events that only give an estimate of the tokens that the thinking took. The reader ignores these
events."""


class ClaudeReader:
    """Turns the lines that one run of Claude Code prints into events.

    `Finished` or `Failed` is reported only by `end`, when the program has ended. A run can print several results,
    because it may go on with background work; the last result gives the numbers of the whole run. The argument `meter`
    measures the tokens that the run used, and their cost.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter or Meter()
        self._result: dict[str, Any] | None = None
        self._error = ""
        self._model = ""
        self._until: datetime | None = None
        """When the usage limit ends that refused a request of this run; None if none did, or the program did not say."""

    def read(self, line: bytes) -> Iterable[ProviderEvent]:
        try:
            event = decode(line)
        except (ValueError, RecursionError):
            return [Other(line.decode("utf-8", "replace").rstrip("\n"))] if line.strip() else []
        if not isinstance(event, dict):
            return [Other(event)]
        if event.get("type") == "stream_event":
            return _deltas(event)
        if event.get("subtype") in _COUNTING:
            return []
        return list(self._said(event)) or [Other(event)]

    def _said(self, event: dict[str, Any]) -> Iterator[ProviderEvent]:
        kind = event.get("type")
        if kind == "assistant":
            yield from self._response(event)
        elif kind == "user":
            yield from _results(event)
        elif kind == "result":
            self._result = event
        elif kind == "rate_limit_event":
            limit = values(event.get("rate_limit_info"))
            if limit.get("status") == "rejected":
                self._until = from_seconds(limit.get("resetsAt")) or self._until
        elif kind == "system" and event.get("subtype") == "api_retry":
            seconds = _number(event.get("retry_delay_ms")) / 1000
            yield Retry(_why(event), seconds, event.get("error_status") in NOT_CARRIED_OUT)
        elif kind == "system" and event.get("subtype") == "init":
            self._model = text(event.get("model")) or self._model

    def _response(self, event: dict[str, Any]) -> Iterator[Response]:
        message = values(event.get("message"))
        if message.get("model") == SYNTHETIC:
            self._error = text(event.get("error"))
            return
        for said in _messages(message):
            if isinstance(said, Assistant) and said.content:
                yield Response(said.content, text(message.get("id")), said.model, _child(event))

    def end(self, status: int, stderr: str) -> Iterable[ProviderEvent]:
        result = self._result
        spent = self._meter.read(result)
        usage, cost = spent.usage, spent.cost_usd
        if result is None:
            kind, reason = _died(status, stderr.strip())
            return [Failed(kind, reason, usage, cost)]
        answer = text(result.get("result"))
        if result.get("is_error") is not True and result.get("subtype") == "success":
            if result.get("num_turns") == 0 and _NO_COMMAND.fullmatch(answer):
                return [Failed("failed", answer, usage, cost)]
            return [Finished(answer, usage, cost, self._model)]
        kind = self._failure(result)
        if kind == "stopped" and not (usage and usage.input_tokens):
            usage = cost = None  # the interrupted request is charged, but nobody counted it
        answered = result.get("api_error_status")
        is_refused = kind == "login" if answered is None else answered in NOT_CARRIED_OUT
        until = (self._until or _end_in(answer)) if kind == "limit" else None
        return [Failed(kind, _reason(result), usage, cost, is_refused, until)]

    def _failure(self, result: dict[str, Any]) -> Failure:
        ended = result.get("terminal_reason")
        if ended == "prompt_too_long":
            return "context"
        if ended in _ABORTED:
            return "stopped"
        if any(error.startswith(_NO_SESSION) for error in _errors(result)):
            return "session"
        status = result.get("api_error_status")
        by_status = _BY_STATUS.get(status, "failed") if isinstance(status, int) else "failed"
        return _BY_ERROR.get(self._error, by_status)


def _end_in(answer: str) -> datetime | None:
    """Return when the usage limit ends, if the program's last words, `answer`, say so in seconds since 1970, as older
    versions do. Returns None if they do not."""
    found = _LIMIT_END.search(answer)
    return from_seconds(int(found[1])) if found else None


def _deltas(event: dict[str, Any]) -> list[Delta]:
    """Return the pieces of text and thinking in a streamed event; an empty list for any other event. Streamed pieces of
    a tool call's arguments are ignored, because the program prints the complete call later."""
    delta = values(values(event.get("event")).get("delta"))
    if delta.get("type") == "text_delta" and text(delta.get("text")):
        return [Delta(delta["text"], child=_child(event))]
    if delta.get("type") == "thinking_delta" and text(delta.get("thinking")):
        return [Delta(delta["thinking"], thinking=True, child=_child(event))]
    return []


def _results(event: dict[str, Any]) -> Iterator[Result]:
    """Yield the tool results in a printed event.

    When the program is interrupted, it reports the calls that it had begun as rejected by the user. Such a report is
    not yielded, because it does not say how the call ended; the program's own session does not hold it either.
    """
    if event.get("tool_use_result") == _REJECTED:
        return
    for said in _messages(values(event.get("message"))):
        if isinstance(said, Tool):
            yield from (Result(block, _child(event)) for block in said.content if isinstance(block, ToolResult))


def _messages(message: dict[str, Any]) -> Iterable[Any]:
    try:
        return from_dialect(message, "anthropic")
    except InvalidInput:
        return ()


def _child(event: dict[str, Any]) -> str:
    return text(event.get("parent_tool_use_id"))


def _why(event: dict[str, Any]) -> str:
    status, error = event.get("error_status"), text(event.get("error")) or "unknown"
    return f"{error} (status {status})" if isinstance(status, int) else error


def _errors(result: dict[str, Any]) -> list[str]:
    errors = result.get("errors")
    return [error for error in errors if isinstance(error, str)] if isinstance(errors, list) else []


def _reason(result: dict[str, Any]) -> str:
    if result.get("terminal_reason") in _ABORTED:
        return "it was interrupted"
    words = text(result.get("result")) or "; ".join(dict.fromkeys(_errors(result))) or text(result.get("subtype"))
    return _short(words or "it failed and did not say why")


def _died(status: int, stderr: str) -> tuple[Failure, str]:
    """Return the kind of failure, and the reason in words, for a program that ended without printing a result. Both are
    derived from its exit status and its standard error."""
    number = -status if status < 0 else status - 128
    if status < 0 or number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        return "stopped", f"it was ended by {signal_name(number)}"
    if stderr.startswith(_NO_SESSION):
        return "session", _short(stderr)
    return "failed", _short(stderr) or f"it ended with status {status} and without a result"


def _short(words: str) -> str:
    """Return `words`, or an ellipsis and their last 600 characters if they are longer: the end is where a program
    usually says what went wrong."""
    return words if len(words) <= _LONGEST_REASON else f"… {words[-_LONGEST_REASON:]}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and value >= 0 else 0.0


_KEPT = b'"cost-state"'
_DIGITS = 10
"""Decimal places to which the difference of two costs in dollars is rounded. Further ones come from floating-point
arithmetic, not from prices."""


class Spent(msgspec.Struct, frozen=True):
    """The tokens that a run or a session used, and what they cost. A value is None if it is unknown."""

    usage: Usage | None = None
    cost_usd: float | None = None


class Meter:
    """Measures what tokens one run used, and what they cost. A session file holds the totals since the session began,
    so the totals before the run are subtracted. Create the meter before the program starts, because it reads those
    totals when it is made."""

    def __init__(self, place: Place | None = None, key: str = "") -> None:
        """Read how many tokens the session has used so far, and their cost, from the session file of this key. `place`
        gives the environment, which says where that file is. If `place` is None, the session is taken as new."""
        self._place = place
        self._key = key
        self._before = self._kept()

    def read(self, result: dict[str, Any] | None) -> Spent:
        """Return the tokens that the run used, and their cost. Call it after the program has ended.

        `result` is the result that the program printed, which has the figures. It is None if the program was ended
        before it printed one; then the totals in the session file are compared with those before the run. Tokens and
        cost are None if the run was stopped before its first response was complete: it used tokens that nobody counted.
        """
        if result is None:
            kept = self._kept()
            added = _minus(kept, self._before) if kept is not None else None
            return added if added is not None and _tokens(added) else Spent()
        total, main = _totals(result), _main_loop(result)
        if total is None:
            return Spent(main, _dollars(result.get("total_cost_usd")))
        return _since(self._before, total, main)

    def _kept(self) -> Spent | None:
        """Return the totals of tokens and cost from the last row (line) of the session file that holds them; None if
        there is no such row or file."""
        path = locate(self._place, self._key) if self._place is not None else None
        for line in lines_from_end(path) if path is not None else ():
            if _KEPT in line and (row := _row(line)).get("type") == "cost-state":
                return Spent(_by_model(row) or Usage(), _dollars(row.get("totalCostUSD")))
        return None


def _since(before: Spent | None, total: Spent, main: Usage | None) -> Spent:
    """Return the tokens that this run used, and their cost. `before` are the totals of the session before the run, and
    `total` is what the program printed. `main` are the tokens that the main conversation, without sub-agents, used in
    this run. `before` and `main` are None if they are unknown.

    Newer programs print totals of the whole session, older ones totals of the run. So the difference of `total` and
    `before` is returned if none of its counts is negative and it has at least the input and output tokens of `main`.
    Otherwise `total` counts as that of the run, and is returned.
    """
    if before is None:
        return total
    added = _minus(total, before)
    if added is None or added.usage is None:
        return total
    least = main or Usage()
    covers = added.usage.input_tokens >= least.input_tokens and added.usage.output_tokens >= least.output_tokens
    return added if covers else total


def _minus(total: Spent, before: Spent | None) -> Spent | None:
    """Return `total` minus `before`, count by count. Returns `total` itself if `before` is None or if the tokens of
    either are unknown. Returns None if any count would be negative, because the two are then not totals of the same
    session."""
    if before is None or total.usage is None or before.usage is None:
        return total
    pairs = zip(msgspec.structs.astuple(total.usage), msgspec.structs.astuple(before.usage), strict=True)
    counts = [more - less for more, less in pairs]
    cost = None
    if total.cost_usd is not None and before.cost_usd is not None:
        cost = round(total.cost_usd - before.cost_usd, _DIGITS)
    return None if min(counts) < 0 or (cost is not None and cost < 0) else Spent(Usage(*counts), cost)


def _totals(result: dict[str, Any]) -> Spent | None:
    """Return the tokens and the cost in `result`, the JSON object that Claude Code prints at the end of a run: summed
    over all models, with sub-agents. Return None if it has no figures by model."""
    usage = _by_model(result)
    return None if usage is None else Spent(usage, _dollars(result.get("total_cost_usd")))


def _by_model(record: dict[str, Any]) -> Usage | None:
    models = [values(model) for model in values(record.get("modelUsage")).values()]
    if not models:
        return None
    read, made = _sum(models, "cacheReadInputTokens"), _sum(models, "cacheCreationInputTokens")
    return Usage(_sum(models, "inputTokens") + read + made, _sum(models, "outputTokens"), read, made)


def _main_loop(result: dict[str, Any]) -> Usage | None:
    """Return the tokens that the main conversation used in this run, without sub-agents, from a printed result; None if
    the result does not say."""
    usage = values(result.get("usage"))
    if not usage:
        return None
    read, made = _sum([usage], "cache_read_input_tokens"), _sum([usage], "cache_creation_input_tokens")
    return Usage(_sum([usage], "input_tokens") + read + made, _sum([usage], "output_tokens"), read, made)


def _tokens(spent: Spent) -> bool:
    return spent.usage is not None and bool(spent.usage.input_tokens or spent.usage.output_tokens)


def _sum(parts: list[dict[str, Any]], name: str) -> int:
    counts = [part.get(name) for part in parts]
    return sum(int(count) for count in counts if isinstance(count, (int, float)) and count >= 0)


def _dollars(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _row(line: bytes) -> dict[str, Any]:
    try:
        return values(decode(line))
    except ValueError:
        return {}
