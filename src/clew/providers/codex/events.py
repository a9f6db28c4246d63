"""What `codex exec --json` prints, line by line."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clew.log import Usage
from clew.messages import Text, Thinking
from clew.providers.base import Job, values
from clew.providers.codex.failures import from_stderr, is_refused, kind_of, words_of
from clew.providers.codex.items import CALLS, call_of, result_of
from clew.providers.codex.rollout import record_of
from clew.providers.codex.spending import Meter, usage_of
from clew.providers.happenings import Failed, Finished, Happening, Other, Response, Result, Retry

__all__ = ["CodexReader"]

_RETRYING = "Reconnecting..."
"""How Codex begins to say that it tries again; anything else that it calls an error is one."""


class CodexReader:
    """Reads one turn. How it ended is told once the program is gone: then all that it used is in its rollouts."""

    def __init__(self, home: Path, job: Job) -> None:
        self._job = job
        self._meter = Meter(home, job.key)
        self._run = secrets.token_hex(4)
        """Codex counts the items of each run from 0; with this their names are of this run alone."""
        self._responses = 0
        self._answered = True
        """Whether a result came since the last block of a response: then the next block begins another one."""
        self._open: dict[str, int] = {}
        """The calls that wait for a result, by the item's id, and how often each was told anew."""
        self._children: set[str] = set()
        self._said = ""
        self._error = ""
        self._failed = False
        self._used: Usage | None = None

    def read(self, line: bytes) -> Iterator[Happening]:
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

    def _complaint(self, message: str, event: dict[str, Any]) -> Iterator[Happening]:
        if message.startswith(_RETRYING):
            yield Retry(words_of(message))
        else:
            self._error = message
            yield Other(event)

    def _item(self, kind: str, item: dict[str, Any], event: dict[str, Any]) -> Iterator[Happening]:
        what, text = item.get("type"), item.get("text")
        if isinstance(what, str) and what in CALLS and isinstance(item.get("id"), str):
            yield from self._call(kind, item)
        elif what in ("agent_message", "reasoning") and isinstance(text, str):
            if kind == "item.completed":
                self._said = text if what == "agent_message" else self._said
                yield self._response(Text(text) if what == "agent_message" else Thinking(text))
        else:
            yield Other(event)

    def _call(self, kind: str, item: dict[str, Any]) -> Iterator[Happening]:
        """A call when it starts, its result when it is complete. A plan goes on changing until the turn's end: each time
        is a call of its own, and done."""
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

    def end(self, status: int, stderr: str) -> Iterator[Happening]:
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
