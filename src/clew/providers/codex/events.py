"""Reads what `codex exec --json` prints: its events, tool calls and errors, and what a run used and cost."""

from __future__ import annotations

import base64
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from clew.errors import NOT_CARRIED_OUT
from clew.log import Usage
from clew.messages import Image, Json, Text, Thinking, ToolCall, ToolResult
from clew.models.prices import cost_of
from clew.providers.base import Job
from clew.providers.codex.rollout import Record, contents, lines_from_end, locate, record_of
from clew.providers.events import Failed, Failure, Finished, Other, ProviderEvent, Response, Result, Retry
from clew.providers.fields import values

__all__ = [
    "CALLS",
    "CodexReader",
    "Meter",
    "Spent",
    "call_of",
    "from_stderr",
    "is_refused",
    "kind_of",
    "result_of",
    "usage_of",
    "words_of",
]


_RETRYING = "Reconnecting..."
"""How Codex begins the message that it tries again. Every other error message is final."""


class CodexReader:
    """Reads the output of one run. `Finished` or `Failed` is reported only once the program has ended: then its
    rollouts hold all that it used."""

    def __init__(self, home: Path, job: Job) -> None:
        self._job = job
        self._meter = Meter(home, job.key)
        self._run = secrets.token_hex(4)
        """Makes the item ids unique: Codex counts the items of each run from 0."""
        self._responses = 0
        self._answered = True
        """Whether a result came since the last block. If so, the next block begins a new response."""
        self._open: dict[str, int] = {}
        """The items that were reported as calls, by id, with how often each plan was reported again."""
        self._children: set[str] = set()
        self._said = ""
        self._error = ""
        self._failed = False
        self._used: Usage | None = None

    def read(self, line: bytes) -> Iterator[ProviderEvent]:
        event = record_of(line)
        if event is None:
            if line.strip():
                yield Other(line.decode(errors="replace").rstrip("\n"))
            return
        kind, item = event.get("type"), values(event.get("item"))
        if kind in ("item.started", "item.updated", "item.completed"):
            yield from self._item(kind, item, event)
        elif kind == "turn.completed":
            self._used = usage_of(event.get("usage"))
        elif kind == "turn.failed":
            self._failed, self._error = True, _message(values(event.get("error"))) or self._error
        elif kind == "error":
            yield from self._complaint(_message(event), event)
        else:
            yield Other(event)

    def _complaint(self, message: str, event: dict[str, Any]) -> Iterator[ProviderEvent]:
        if message.startswith(_RETRYING):
            yield Retry(words_of(message))
        else:
            self._error = message
            yield Other(event)

    def _item(self, kind: str, item: dict[str, Any], event: dict[str, Any]) -> Iterator[ProviderEvent]:
        what, text = item.get("type"), item.get("text")
        if isinstance(what, str) and what in CALLS and isinstance(item.get("id"), str):
            yield from self._call(kind, item)
        elif what in ("agent_message", "reasoning") and isinstance(text, str):
            if kind == "item.completed":
                self._said = text if what == "agent_message" else self._said
                yield self._response(Text(text) if what == "agent_message" else Thinking(text))
        else:
            yield Other(event)

    def _call(self, kind: str, item: dict[str, Any]) -> Iterator[ProviderEvent]:
        """Report a call when it starts and its result when it is complete. Each change of a plan is a complete call of
        its own, because a plan has no end before the exchange does."""
        named = item.get("receiver_thread_ids")
        self._children |= {child for child in named if isinstance(child, str)} if isinstance(named, list) else set()
        known, plan = self._open.get(item["id"]), item["type"] == "todo_list"
        call_id = f"{self._run}_{item['id']}" + (f"_{known + 1}" if plan and known is not None else "")
        if known is None or (plan and kind == "item.updated"):
            self._open[item["id"]] = 0 if known is None else known + 1
            yield self._response(call_of(item, call_id))
            if plan:
                yield self._result(item, call_id)
        if kind == "item.completed" and not plan:
            yield self._result(item, call_id)

    def _response(self, block: Any) -> Response:
        if self._answered:
            self._responses += 1
            self._answered = False
        return Response((block,), f"{self._run}_{self._responses}")

    def _result(self, item: dict[str, Any], call_id: str) -> Result:
        self._answered = True
        return Result(result_of(item, call_id))

    def end(self, status: int, stderr: str) -> Iterator[ProviderEvent]:
        spent = self._meter.read(self._used, sorted(self._children), self._job.model)
        if self._used is not None and not self._failed:
            yield Finished(self._said, spent.usage, spent.cost_usd, spent.model)
        elif self._error and (self._failed or status > 0):
            reason = words_of(self._error)
            kind, refused = kind_of(self._error, spent.error), is_refused(self._error, spent.error)
            yield Failed(kind, reason, spent.usage, spent.cost_usd, refused)
        else:
            yield Failed(*from_stderr(status, stderr), spent.usage, spent.cost_usd)


def _message(value: dict[str, Any]) -> str:
    message = value.get("message")
    return message if isinstance(message, str) else ""


_KINDS: dict[str, Failure] = {
    "unauthorized": "login",
    "usage_limit_exceeded": "limit",
    "rate_limit_exceeded": "limit",
    "context_window_exceeded": "context",
}
"""Failures by the name that Codex writes into its rollout."""
_CODES: dict[str, Failure] = {
    "invalid_api_key": "login",
    "insufficient_quota": "limit",
    "rate_limit_exceeded": "limit",
    "usage_limit_reached": "limit",
    "context_length_exceeded": "context",
}
"""Failures by the vendor's error code, in the body of a refusal that Codex prints unchanged."""
_STATUSES: dict[int, Failure] = {401: "login", 403: "login", 429: "limit"}
_STATUS = re.compile(r"(?:unexpected status|last status:) (\d{3})\b")
_ERROR = re.compile(r"^Error: (?:thread/\w+: )?(?:thread/\w+ failed: )?(.+?)(?: \(code -?\d+\).*)?$", re.MULTILINE)
_LONGEST_REASON = 600


def kind_of(message: str, info: Any) -> Failure:
    """Classify a failure. `message` is the printed error, and `info` is what the rollout says of it: a name, or a name
    with an HTTP status."""
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
    """Return whether the vendor did not carry out the request. Codex gives the HTTP status, or prints the vendor's
    answer to a 400."""
    status = _status_in(info)
    if status is None and (found := _STATUS.search(message)):
        status = int(found.group(1))
    return bool(_refusal(message)) or info == "unauthorized" if status is None else status in NOT_CARRIED_OUT


def _status_in(info: Any) -> int | None:
    """Return the HTTP status in a rollout's error information; None if there is none."""
    statuses = (values(detail).get("http_status_code") for detail in values(info).values())
    return next((status for status in statuses if isinstance(status, int)), None)


def words_of(message: str) -> str:
    """Return the text of an error, taken out of the JSON that it may come in."""
    said = _refusal(message).get("message")
    return _short(said if isinstance(said, str) and said else message)


def _refusal(message: str) -> dict[str, Any]:
    return values((record_of(message.encode(errors="replace")) or {}).get("error"))


def from_stderr(status: int, stderr: str) -> tuple[Failure, str]:
    """Say how a program failed that did not report the end of an exchange: by its last error message, or its last
    line."""
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
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " …"


Item = dict[str, Any]
Content = tuple[Text | Json | Image, ...]


def _command(item: Item) -> tuple[str, Any]:
    return "exec_command", {"cmd": _unwrapped(str(item.get("command", "")))}


def _unwrapped(command: str) -> str:
    """Return the command as the model wrote it: Codex prints it wrapped in a call of the shell."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return words[2] if len(words) == 3 and words[1] in ("-lc", "-c") else command


def _patch(item: Item) -> tuple[str, Any]:
    return "apply_patch", {"changes": item.get("changes")}


def _mcp(item: Item) -> tuple[str, Any]:
    return f"mcp__{item.get('server')}__{item.get('tool')}", item.get("arguments")


def _search(item: Item) -> tuple[str, Any]:
    return "web_search", item.get("action") or {"query": item.get("query")}


def _plan(item: Item) -> tuple[str, Any]:
    """Return the plan as a call with the arguments that the model would write. Codex prints only whether a step is
    done."""
    items = item.get("items")
    steps = [values(step) for step in items] if isinstance(items, list) else []
    plan = [{"step": step.get("text"), "status": "completed" if step.get("completed") else "pending"} for step in steps]
    return "update_plan", {"plan": plan}


def _agents(item: Item) -> tuple[str, Any]:
    told = {"message": item.get("prompt"), "targets": item.get("receiver_thread_ids")}
    return str(item.get("tool")), {name: value for name, value in told.items() if value}


CALLS: dict[Any, Callable[[Item], tuple[str, Any]]] = {
    "command_execution": _command,
    "file_change": _patch,
    "mcp_tool_call": _mcp,
    "web_search": _search,
    "todo_list": _plan,
    "collab_tool_call": _agents,
}
"""The item types that are tool calls, each with the function that gives the call's name and arguments."""


def call_of(item: Item, call_id: str) -> ToolCall:
    name, arguments = CALLS[item["type"]](item)
    return ToolCall(call_id, name, arguments)


def result_of(item: Item, call_id: str) -> ToolResult:
    """Return the result of a completed item. It has no content for calls whose result Codex does not print, such as a
    search."""
    failed = item.get("status") in ("failed", "declined")
    return ToolResult(call_id, _content(item), failed)


def _content(item: Item) -> Content:
    kind = item["type"]
    if kind == "command_execution":
        said, code = item.get("aggregated_output"), item.get("exit_code")
        ending = (Text(f"exit code {code}"),) if isinstance(code, int) and code else ()
        return (*_texts(said), *ending)
    if kind == "mcp_tool_call":
        return _mcp_content(item)
    if kind == "collab_tool_call" and item.get("agents_states"):
        return (Json(item["agents_states"]),)
    return _texts(item.get("status")) if kind == "file_change" else ()


def _texts(value: Any) -> tuple[Text, ...]:
    return (Text(value),) if isinstance(value, str) and value else ()


def _mcp_content(item: Item) -> Content:
    wrong = values(item.get("error")).get("message")
    result = values(item.get("result"))
    blocks = result.get("content")
    content = tuple(_mcp_block(block) for block in blocks) if isinstance(blocks, list) else ()
    if not content and result.get("structured_content") is not None:
        content = (Json(result["structured_content"]),)
    return (*content, *_texts(wrong))


def _mcp_block(block: Any) -> Text | Json | Image:
    fields = values(block)
    if fields.get("type") == "text" and isinstance(fields.get("text"), str):
        return Text(fields["text"])
    if fields.get("type") == "image":
        try:
            return Image(str(fields.get("mimeType", "")), base64.b64decode(str(fields.get("data", "")), validate=True))
        except ValueError:
            pass
    return Json(block)


class Spent(msgspec.Struct, frozen=True):
    """What one run used and cost, its model and its error. None where it is unknown."""

    usage: Usage | None = None
    cost_usd: float | None = None
    model: str = ""
    error: Any = None
    """The rollout's error information if the exchange failed."""


class Meter:
    """Measures what one run used. Create it before the program starts: it notes the usage and the size of the rollout
    until then."""

    def __init__(self, home: Path, key: str) -> None:
        self._home = home
        self._key = key
        path = locate(home, key)
        self._before = _total(path) if path else Usage()
        self._from = 0 if path is None else len(contents(path)) if path.suffix == ".zst" else path.stat().st_size

    def read(self, reported: Usage | None, children: Iterable[str], model: str) -> Spent:
        """Return what was used since the meter was created, after the program has ended.

        `reported` is the total that the program printed for the conversation, `children` are the keys of its
        sub-agents, each with a rollout of its own, and `model` is the model that was asked for.
        """
        path = locate(self._home, self._key)
        turn = _Turn(contents(path, self._from), "") if path else _Turn(b"", "")
        total = reported or turn.total
        usage = None if total is None else _minus(total, self._before)
        parts = [turn.parts if usage is None or turn.used == usage else [(turn.model, usage)]]
        for child in children:
            other = locate(self._home, child) if child != self._key and turn.id else None
            if other is not None:
                parts.append(_Turn(contents(other), turn.id).parts)
        spent = [part for some in parts for part in some]
        if not spent:
            return Spent(usage, None, turn.model or model, turn.error)
        costs = [cost_of([name for name in (named, model) if name], used) for named, used in spent]
        known = [cost for cost in costs if cost is not None]
        cost = sum(known) if len(known) == len(costs) else None
        return Spent(_sum(used for _, used in spent), cost, turn.model or model, turn.error)


class _Turn:
    """The usage, model and error in a part of a rollout. With `root`, the id of an exchange, only the usage of
    sub-agents that worked for that exchange counts."""

    def __init__(self, data: bytes, root: str) -> None:
        self.id = ""
        self.model = ""
        self.parts: list[tuple[str, Usage]] = []
        """Each response's model and usage."""
        self.total: Usage | None = None
        self.error: Any = None
        for row in data.split(b"\n"):
            record = record_of(row)
            if record is not None:
                self._take(record, values(record.get("payload")), root)

    def _take(self, record: Record, payload: Record, root: str) -> None:
        kind = payload.get("type") if record.get("type") == "event_msg" else record.get("type")
        if kind == "turn_context":
            self.model = str(payload.get("model") or self.model)
        elif kind == "token_usage_record":
            if not root or payload.get("root_turn_id") == root:
                self.parts.append((self.model, usage_of(payload.get("usage"))))
        elif kind == "token_count":
            total = values(payload.get("info")).get("total_token_usage")
            self.total = usage_of(total) if total else self.total
        elif kind == "task_started":
            self.id = str(payload.get("turn_id") or "")
        elif kind == "task_complete":
            self.error = values(payload.get("error")).get("codex_error_info")

    @property
    def used(self) -> Usage:
        return _sum(usage for _, usage in self.parts)


def usage_of(value: Any) -> Usage:
    """Read token counts as Codex writes them."""
    fields = values(value)
    names = (
        "input_tokens",
        "output_tokens",
        "cached_input_tokens",
        "cache_write_input_tokens",
        "reasoning_output_tokens",
    )
    counts = [fields.get(name) for name in names]
    return Usage(*(count if isinstance(count, int) and count > 0 else 0 for count in counts))


def _total(path: Path) -> Usage:
    """Return what a conversation has used so far, from its last record that says so."""
    for row in lines_from_end(path):
        if b'"token_count"' in row or b'"token_usage_record"' in row:
            payload = values((record_of(row) or {}).get("payload"))
            total = values(payload.get("info")).get("total_token_usage") or payload.get("thread_token_usage")
            if total:
                return usage_of(total)
    return Usage()


def _minus(usage: Usage, other: Usage) -> Usage:
    pairs = zip(msgspec.structs.astuple(usage), msgspec.structs.astuple(other), strict=True)
    return Usage(*(max(0, more - less) for more, less in pairs))


def _sum(usages: Iterable[Usage]) -> Usage:
    rows = [msgspec.structs.astuple(usage) for usage in usages]
    return Usage(*map(sum, zip(*rows, strict=True))) if rows else Usage()
