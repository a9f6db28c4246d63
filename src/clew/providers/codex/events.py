"""Reads what `codex exec --json` prints: its events, tool calls and errors. Also measures what a run used and cost,
from rollouts, the files in which Codex keeps conversations."""

from __future__ import annotations

import base64
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from clew.errors import NOT_CARRIED_OUT
from clew.log import Usage
from clew.messages import Image, Json, Text, Thinking, ToolCall, ToolResult
from clew.models.prices import cost_of
from clew.providers.base import Job
from clew.providers.codex.rollout import Record, contents, length, limit_end, lines_from_end, locate, record_of, rows
from clew.providers.events import Failed, Failure, Finished, Other, ProviderEvent, Response, Result, Retry
from clew.providers.fields import from_seconds, values

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
"""How an error message of Codex begins if it only says that Codex tries again. Every other error message is final."""


class CodexReader:
    """Turns the lines that one run of Codex prints into events. `Finished` or `Failed` is reported only by `end`, once
    the program has ended: only then do Codex's files show everything that the run used. `job` is the prompt that is
    run, and `home` is the folder in which Codex keeps its files."""

    def __init__(self, home: Path, job: Job) -> None:
        self._job = job
        self._meter = Meter(home, job.key)
        self._run = secrets.token_hex(4)
        """A random part of the item ids. It makes them unique, because Codex numbers the items of each run from 0."""
        self._responses = 0
        self._answered = True
        """Whether a tool result was read after the last block of a response. If so, the next block begins a new
        response."""
        self._open: dict[str, int] = {}
        """The items that were reported as tool calls, by id. A plan, which Codex prints again when it changes, is
        reported each time: the value counts the reports after the first. For every other item the value is 0."""
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
        """Yield the events of a tool call. `item` is what Codex printed about the call, and `kind` says whether the
        call is started, updated or completed. Yields the call when it is first seen, and its result when it is
        completed. A plan of the model is different: each change of it is yielded as a call and its result at once,
        because a plan stays open until the exchange ends."""
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
            until = (_end_in(self._error) or spent.until) if kind == "limit" else None
            yield Failed(kind, reason, spent.usage, spent.cost_usd, refused, until)
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
"""The kind of failure for each error name that Codex writes into its rollout, the file of the conversation."""
_CODES: dict[str, Failure] = {
    "invalid_api_key": "login",
    "insufficient_quota": "limit",
    "rate_limit_exceeded": "limit",
    "usage_limit_reached": "limit",
    "context_length_exceeded": "context",
}
"""The kind of failure for each error code of the vendor. The code stands in the vendor's answer to a refused request,
which Codex prints unchanged."""
_STATUSES: dict[int, Failure] = {401: "login", 403: "login", 429: "limit"}
_STATUS = re.compile(r"(?:unexpected status|last status:) (\d{3})\b")
_ERROR = re.compile(r"^Error: (?:thread/\w+: )?(?:thread/\w+ failed: )?(.+?)(?: \(code -?\d+\).*)?$", re.MULTILINE)
_LONGEST_REASON = 600


def kind_of(message: str, info: Any) -> Failure:
    """Return why a prompt failed: `login`, `limit`, `context`, or `failed` for anything else. `message` is the error
    that Codex printed. `info` is what Codex wrote about it into its conversation file: the name of an error, or a dict
    of a name and an HTTP status."""
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
    """Return whether the vendor refused a request without running it, so that it is not charged. `message` is the error
    that Codex printed, and `info` is what Codex wrote about it into its conversation file. The HTTP status in `info` or
    `message` decides. If there is none, the request counts as refused if `message` is an error report of the vendor,
    which is JSON, or if `info` is `unauthorized`."""
    status = _status_in(info)
    if status is None and (found := _STATUS.search(message)):
        status = int(found.group(1))
    return bool(_refusal(message)) or info == "unauthorized" if status is None else status in NOT_CARRIED_OUT


def _status_in(info: Any) -> int | None:
    """Return the HTTP status in `info`, the error information that Codex wrote into its conversation file; None if
    there is none."""
    statuses = (values(detail).get("http_status_code") for detail in values(info).values())
    return next((status for status in statuses if isinstance(status, int)), None)


def words_of(message: str) -> str:
    """Return an error message as plain text, cut to 600 characters. If the message is JSON from the vendor, only the
    text in it is returned."""
    said = _refusal(message).get("message")
    return _short(said if isinstance(said, str) and said else message)


def _refusal(message: str) -> dict[str, Any]:
    return values((record_of(message.encode(errors="replace")) or {}).get("error"))


def _end_in(message: str) -> datetime | None:
    """Return when the usage limit ends, if the vendor's answer in an error message says so; None if it does not."""
    return from_seconds(_refusal(message).get("resets_at"))


def from_stderr(status: int, stderr: str) -> tuple[Failure, str]:
    """Return the kind of failure, and the reason in words, for a program that ended without reporting how the exchange
    ended. The reason is the last error in its standard error, or else its exit status and the last line there."""
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
    """Return the command as the model wrote it. Codex prints it wrapped, as in `bash -lc '…'`."""
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
    """Convert a plan, the model's to-do list, which Codex printed as `item`, to the tool call that sets it. Returns the
    tool's name and the arguments. Each step of the plan is `completed` or `pending`, because Codex prints no other
    state."""
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
"""The types of printed items that are tool calls, each with a function that returns the call's name and arguments."""


def call_of(item: Item, call_id: str) -> ToolCall:
    name, arguments = CALLS[item["type"]](item)
    return ToolCall(call_id, name, arguments)


def result_of(item: Item, call_id: str) -> ToolResult:
    """Return the result of a tool call from `item`, which Codex prints when the call is completed. The result gets this
    call id. It has no content if Codex does not print the result, as for a web search."""
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
    """The tokens that one run used, their cost, the model that answered, and the error that the run ended with. A value
    is None, or the model empty, if it is unknown."""

    usage: Usage | None = None
    cost_usd: float | None = None
    model: str = ""
    error: Any = None
    """What Codex wrote about the error into its conversation file; None if the exchange did not fail."""
    until: datetime | None = None
    """When Codex can be used again, if it wrote that a usage limit is used up."""


class Meter:
    """Measures the tokens that one run of Codex used, and their cost. Create it before the program starts, because it
    then notes how many tokens the conversation of this key has used until now, and how long its file is. `home` is
    Codex's home folder."""

    def __init__(self, home: Path, key: str) -> None:
        self._home = home
        self._key = key
        path = locate(home, key)
        self._before = _total(path) if path else Usage()
        self._from = 0 if path is None else length(path)

    def read(self, reported: Usage | None, children: Iterable[str], model: str) -> Spent:
        """Return the tokens that the run used since the meter was created, their cost, the model that answered and, if
        the run failed, the error that Codex wrote. Call it after the program has ended.

        `reported` are the tokens that the whole conversation has used according to the program's output; None if it
        printed none. `children` are the keys of its sub-agents, each of which has a file of its own. `model` is the
        model that was asked for; its price is used if no other model is on record.
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
            return Spent(usage, None, turn.model or model, turn.error, turn.until)
        costs = [cost_of([name for name in (named, model) if name], used) for named, used in spent]
        known = [cost for cost in costs if cost is not None]
        cost = sum(known) if len(known) == len(costs) else None
        return Spent(_sum(used for _, used in spent), cost, turn.model or model, turn.error, turn.until)


class _Turn:
    """Collects the usage, model and error of one exchange. `data` are the lines of its records in a rollout, Codex's
    file of one conversation. For the rollout of a sub-agent, `root` is the id of the exchange that the sub-agent worked
    for, and usage for other exchanges is not counted; otherwise `root` is empty."""

    def __init__(self, data: bytes, root: str) -> None:
        self.id = ""
        self.model = ""
        self.parts: list[tuple[str, Usage]] = []
        """The model and the usage of each response."""
        self.total: Usage | None = None
        self.error: Any = None
        self.until: datetime | None = None
        for row in rows(data):
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
            self.until = limit_end(payload.get("rate_limits")) or self.until
        elif kind == "task_started":
            self.id = str(payload.get("turn_id") or "")
        elif kind == "task_complete":
            self.error = values(payload.get("error")).get("codex_error_info")

    @property
    def used(self) -> Usage:
        return _sum(usage for _, usage in self.parts)


def usage_of(value: Any) -> Usage:
    """Return the token counts in `value`, an object that Codex wrote, as a `Usage`. A missing count becomes 0."""
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
    """Return the tokens that the conversation in the file `path` has used since it began, from the last record that
    says so; zero if no record does."""
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
