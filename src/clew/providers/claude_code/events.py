"""What `claude --output-format stream-json` prints, read line by line."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from clew.errors import NOT_CARRIED_OUT, InvalidInput
from clew.log import Usage
from clew.messages import Assistant, Tool, ToolResult
from clew.messages.dialects import from_dialect
from clew.providers.base import Place, values
from clew.providers.claude_code.rows import decode
from clew.providers.claude_code.storage import locate
from clew.providers.events import Delta, Failed, Failure, Finished, Happening, Other, Response, Result, Retry
from clew.providers.files import lines_from_end

__all__ = ["SYNTHETIC", "ClaudeReader", "Meter", "Spent"]


SYNTHETIC = "<synthetic>"
"""The model of messages that the program itself put in the model's mouth."""
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
_LONGEST_REASON = 600
_COUNTING = ("thinking_tokens",)
"""Said again and again while the model thinks, and no more than a guess."""


class ClaudeReader:
    """Of one run. The last word is said when the program has ended: while work goes on in its background, it may print
    more than one result, and the figures of the last hold for the whole run."""

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter or Meter()
        self._result: dict[str, Any] | None = None
        self._error = ""
        self._model = ""

    def read(self, line: bytes) -> Iterable[Happening]:
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

    def _said(self, event: dict[str, Any]) -> Iterator[Happening]:
        kind = event.get("type")
        if kind == "assistant":
            yield from self._response(event)
        elif kind == "user":
            yield from _results(event)
        elif kind == "result":
            self._result = event
        elif kind == "system" and event.get("subtype") == "api_retry":
            seconds = _number(event.get("retry_delay_ms")) / 1000
            yield Retry(_why(event), seconds, event.get("error_status") in NOT_CARRIED_OUT)
        elif kind == "system" and event.get("subtype") == "init":
            self._model = _text(event.get("model")) or self._model

    def _response(self, event: dict[str, Any]) -> Iterator[Response]:
        message = values(event.get("message"))
        if message.get("model") == SYNTHETIC:
            self._error = _text(event.get("error"))
            return
        for said in _messages(message):
            if isinstance(said, Assistant) and said.content:
                yield Response(said.content, _text(message.get("id")), said.model, _child(event))

    def end(self, status: int, stderr: str) -> Iterable[Happening]:
        result = self._result
        spent = self._meter.read(result)
        usage, cost = spent.usage, spent.cost_usd
        if result is None:
            kind, reason = _died(status, stderr.strip())
            return [Failed(kind, reason, usage, cost)]
        text = _text(result.get("result"))
        if result.get("is_error") is not True and result.get("subtype") == "success":
            if result.get("num_turns") == 0 and _NO_COMMAND.fullmatch(text):
                return [Failed("failed", text, usage, cost)]
            return [Finished(text, usage, cost, self._model)]
        kind = self._failure(result)
        if kind == "stopped" and not (usage and usage.input_tokens):
            usage = cost = None  # what was on its way is paid for, and was not counted
        answered = result.get("api_error_status")
        is_refused = kind == "login" if answered is None else answered in NOT_CARRIED_OUT
        return [Failed(kind, _reason(result), usage, cost, is_refused)]

    def _failure(self, result: dict[str, Any]) -> Failure:
        ended = result.get("terminal_reason")
        if ended == "prompt_too_long":
            return "context"
        if ended in _ABORTED:
            return "stopped"
        if any(text.startswith(_NO_SESSION) for text in _errors(result)):
            return "session"
        status = result.get("api_error_status")
        by_status = _BY_STATUS.get(status, "failed") if isinstance(status, int) else "failed"
        return _BY_ERROR.get(self._error, by_status)


def _deltas(event: dict[str, Any]) -> list[Delta]:
    """Words as they come. All else that streams comes again, in whole blocks."""
    delta = values(values(event.get("event")).get("delta"))
    if delta.get("type") == "text_delta" and _text(delta.get("text")):
        return [Delta(delta["text"], child=_child(event))]
    if delta.get("type") == "thinking_delta" and _text(delta.get("thinking")):
        return [Delta(delta["thinking"], thinking=True, child=_child(event))]
    return []


def _results(event: dict[str, Any]) -> Iterator[Result]:
    """When the program is interrupted, it says of calls that it had begun that the user did not want them. That is no
    outcome, and its own session does not have it either."""
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
    return _text(event.get("parent_tool_use_id"))


def _why(event: dict[str, Any]) -> str:
    status, error = event.get("error_status"), _text(event.get("error")) or "unknown"
    return f"{error} (status {status})" if isinstance(status, int) else error


def _errors(result: dict[str, Any]) -> list[str]:
    errors = result.get("errors")
    return [error for error in errors if isinstance(error, str)] if isinstance(errors, list) else []


def _reason(result: dict[str, Any]) -> str:
    if result.get("terminal_reason") in _ABORTED:
        return "it was interrupted"
    words = _text(result.get("result")) or "; ".join(dict.fromkeys(_errors(result))) or _text(result.get("subtype"))
    return _short(words or "it failed and did not say why")


def _died(status: int, stderr: str) -> tuple[Failure, str]:
    """Nothing was said on the way out: what is known is how it ended, and what it wrote for people."""
    number = -status if status < 0 else status - 128
    if status < 0 or number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        return "stopped", f"it was ended by {_signal(number)}"
    if stderr.startswith(_NO_SESSION):
        return "session", _short(stderr)
    return "failed", _short(stderr) or f"it ended with status {status} and without a result"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _short(text: str) -> str:
    """The end, which is where programs say what went wrong."""
    return text if len(text) <= _LONGEST_REASON else f"… {text[-_LONGEST_REASON:]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and value >= 0 else 0.0


_KEPT = b'"cost-state"'
_DIGITS = 10
"""Of a difference of dollars: further ones are of the arithmetic, and not of the prices."""


class Spent(msgspec.Struct, frozen=True):
    """None stands for what nobody knows."""

    usage: Usage | None = None
    cost_usd: float | None = None


class Meter:
    """Made before the program starts: it knows what the session had used until then, and so what a run has added."""

    def __init__(self, place: Place | None = None, key: str = "") -> None:
        """Without a place the session is taken for a new one."""
        self._place = place
        self._key = key
        self._before = self._kept()

    def read(self, result: dict[str, Any] | None) -> Spent:
        """What the run used, now that it has ended: by its result, or by what it kept if it was ended before it had one.
        A run that was stopped before the first response was whole has used something that nobody counted."""
        if result is None:
            kept = self._kept()
            added = _minus(kept, self._before) if kept is not None else None
            return added if added is not None and _tokens(added) else Spent()
        total, main = _totals(result), _main_loop(result)
        if total is None:
            return Spent(main, _dollars(result.get("total_cost_usd")))
        return _since(self._before, total, main)

    def _kept(self) -> Spent | None:
        """The totals of the session's file, by its last row that has any; None if there is no such row."""
        path = locate(self._place, self._key) if self._place is not None else None
        for line in lines_from_end(path) if path is not None else ():
            if _KEPT in line and (row := _row(line)).get("type") == "cost-state":
                return Spent(_by_model(row) or Usage(), _dollars(row.get("totalCostUSD")))
        return None


def _since(before: Spent | None, total: Spent, main: Usage | None) -> Spent:
    """The part of the totals that is the run's. They are the session's if they are no less than it had before, and what
    is more still covers the run's own main loop, which is always printed alone; else the run's, by an older program."""
    if before is None:
        return total
    added = _minus(total, before)
    if added is None or added.usage is None:
        return total
    least = main or Usage()
    covers = added.usage.input_tokens >= least.input_tokens and added.usage.output_tokens >= least.output_tokens
    return added if covers else total


def _minus(total: Spent, before: Spent | None) -> Spent | None:
    """What was added; None if something has become less, so that these are no two totals of one session."""
    if before is None or total.usage is None or before.usage is None:
        return total
    pairs = zip(msgspec.structs.astuple(total.usage), msgspec.structs.astuple(before.usage), strict=True)
    counts = [more - less for more, less in pairs]
    cost = None
    if total.cost_usd is not None and before.cost_usd is not None:
        cost = round(total.cost_usd - before.cost_usd, _DIGITS)
    return None if min(counts) < 0 or (cost is not None and cost < 0) else Spent(Usage(*counts), cost)


def _totals(result: dict[str, Any]) -> Spent | None:
    """By model, it is of all that was asked, sub-agents among it."""
    usage = _by_model(result)
    return None if usage is None else Spent(usage, _dollars(result.get("total_cost_usd")))


def _by_model(record: dict[str, Any]) -> Usage | None:
    models = [values(model) for model in values(record.get("modelUsage")).values()]
    if not models:
        return None
    read, made = _sum(models, "cacheReadInputTokens"), _sum(models, "cacheCreationInputTokens")
    return Usage(_sum(models, "inputTokens") + read + made, _sum(models, "outputTokens"), read, made)


def _main_loop(result: dict[str, Any]) -> Usage | None:
    """Of the conversation itself, without sub-agents, and of the run alone in every version."""
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
