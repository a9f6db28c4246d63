"""Reads what `opencode run --format json` prints, adds up the tokens and the cost of a run, and finds running tool
calls in opencode's database."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clew.errors import ClewError
from clew.log import Usage
from clew.messages import Assistant, Block, Text, Tool, ToolResult
from clew.providers.events import Failed, Failure, Finished, Other, ProviderEvent, Response, Result, Retry
from clew.providers.fields import text, values
from clew.providers.opencode.blocks import thinking_block, tool_blocks
from clew.providers.opencode.convert import Stored, messages_of
from clew.providers.opencode.database import Row, connect, limit_steps, select
from clew.providers.process import signal_name

__all__ = ["Children", "OpenCodeReader", "RunningCalls", "StepTotals"]


Children = Callable[[str, int], Sequence[Stored]]
"""A function that returns the messages of a sub-agent's session, given by its key, since a time in milliseconds.
opencode does not print them, so they are read from its database."""
_TRIES = 10
"""When this many responses in a row have broken off, Clew gives the prompt up as failed. For some causes opencode
itself gives up after 6 and says why; for others it would try for ever."""
_GOES_ON = frozenset({"tool-calls", "unknown"})
"""If a step (one model response) ended for one of these reasons, opencode goes on with another step."""
_KINDS: dict[str, Failure] = {
    "ProviderAuthError": "login",
    "ContextOverflowError": "context",
    "MessageAbortedError": "stopped",
}
_STATUSES: dict[int, Failure] = {401: "login", 402: "limit", 403: "login", 413: "context", 429: "limit"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DEEPEST = 8


class OpenCodeReader:
    """Turns the lines that one run of opencode prints into events. opencode prints no line to say that the prompt is
    answered. The method `end` decides this by the reason for which the last step (one model response) ended."""

    def __init__(self, children: Children, model: Callable[[], str] = str, asked: str = "") -> None:
        """`children` is a function that returns messages of a sub-agent's session, which opencode does not print. It
        takes the key of that session and a time in milliseconds since 1970; only messages from that time on are
        returned. `model` is called after an answer and returns the name of the model that gave it. `asked` is the model
        that was named for this prompt; empty if none was."""
        self._children = children
        self._asked = asked
        self._model = model
        self._totals = StepTotals()
        self._words: list[str] = []
        self._reason = ""
        """Why the last step (one model response) ended. Empty before the first step has ended, and while another is
        running."""
        self._step = ""
        self._broken = 0
        self._refused = ""
        self._failure: tuple[Failure, str] | None = None
        self._over = False
        self._parts: set[str] = set()
        """The ids of the message parts that were read so far. A part can come twice: found in the database by
        `RunningCalls`, and later printed by opencode."""

    def read(self, line: bytes) -> Iterable[ProviderEvent]:
        try:
            event = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return [Other(line.decode(errors="replace"))] if line.strip() else []
        kind = event.get("type") if isinstance(event, dict) else None
        part = values(event.get("part")) if isinstance(event, dict) else {}
        if kind in ("text", "reasoning") and self._is_known(part):
            return []
        if kind == "step_start":
            return self._start(text(part.get("messageID")))
        if kind == "text" and part.get("synthetic"):
            self._reason = ""  # opencode told the model to continue: the text before was a summary
            return [Other(event)]
        if kind == "text":
            self._words.append(text(part.get("text")))
            return [self._response(Text(text(part.get("text"))), part)]
        if kind == "reasoning":
            return [self._response(thinking_block(part), part)]
        if kind == "tool_use":
            return list(self._tool(part))
        if kind == "step_finish":
            return self._finish(part)
        if kind == "error":
            self._failure = _failure(values(event.get("error")))
            return []
        return [Other(event)]

    def end(self, status: int, stderr: str) -> Iterable[ProviderEvent]:
        if self._over:
            return []
        self._over = True
        if self._failure is None and self._reason and self._reason not in _GOES_ON:
            answer = "\n".join(self._words)
            return [Finished(answer, self._totals.usage, self._totals.cost_usd, self._model())]
        return [self._failed(*(self._failure or self._why(status, stderr)))]

    def _start(self, message: str) -> list[ProviderEvent]:
        """Note that a step (one model response) has started in the message with the id `message`. If a step of the same
        message was running, its response broke off. Then a list with a `Retry` is returned, or with a `Failed` if this
        was the tenth response in a row to break off. Otherwise the list is empty."""
        again = message == self._step
        self._step, self._reason = message, ""
        self._words.clear()
        return self._broke_off() if again else []

    def _finish(self, part: dict[str, Any]) -> list[ProviderEvent]:
        self._totals.add(part)
        self._step, self._reason = "", text(part.get("reason")) or "unknown"
        if self._reason not in _GOES_ON:
            self._failure = None  # the conversation was too long at first, and was compacted since
        if self._reason == "unknown":
            return self._broke_off()
        self._broken = 0
        return []

    def _broke_off(self) -> list[ProviderEvent]:
        self._broken += 1
        if self._broken < _TRIES:
            return [Retry("the response broke off")]
        if self._over:
            return []
        self._over = True
        return [self._failed("failed", f"the response broke off {_TRIES} times in a row")]

    def _tool(self, part: dict[str, Any]) -> Iterator[ProviderEvent]:
        self._broken = 0
        call, result = tool_blocks(part)
        if not self._is_known(part):
            yield self._response(call, part)
        yield from self._child(part, 1)
        if result is not None:
            self._refused = _said(result) if result.is_error else ""
            yield Result(result)

    def _response(self, block: Block, part: dict[str, Any]) -> Response:
        return Response((block,), text(part.get("messageID")), self._asked)

    def _is_known(self, part: dict[str, Any]) -> bool:
        """Return whether this part of a message (a piece such as a text or a tool call) was read before, and remember
        it as read."""
        name = text(part.get("id"))
        known = name in self._parts
        self._parts |= {name} if name else set()
        return known

    def _child(self, part: dict[str, Any], depth: int) -> Iterator[ProviderEvent]:
        """If `part` is a tool call that started a sub-agent, yield what the sub-agent and its own sub-agents said and
        did, and add the tokens and cost of all of them to those of the run. `depth` is 1 for a sub-agent of the main
        conversation, 2 for a sub-agent of that one, and so on. Nothing is read of sub-agents deeper than 8."""
        state = values(part.get("state"))
        session = text(values(state.get("metadata")).get("sessionId"))
        since = values(state.get("time")).get("start")
        if part.get("tool") != "task" or not session or not isinstance(since, int) or depth > _DEEPEST:
            return
        child = text(part.get("callID"))
        try:
            messages = self._children(session, since)
        except ClewError as error:
            yield Other({"unread": session, "reason": str(error)})
            return
        for message in messages:
            for step in message.parts:
                if step.get("type") == "step-finish":
                    self._totals.add(step)
                yield from self._child(step, depth + 1)
            yield from _child_events(message, child)

    def _why(self, status: int, stderr: str) -> tuple[Failure, str]:
        """Return the kind of failure, and the reason in words, for a program that ended without an answer and without
        printing an error. `status` is its exit status, or the negative number of the signal that ended it. `stderr` is
        the end of its standard error."""
        if status < 0:
            return "stopped", f"opencode was ended by {signal_name(-status)}"
        said = _last_words(stderr)
        if said == "Session not found":
            return "session", said
        if status == 0 and self._reason == "tool-calls":
            return "failed", self._refused or "opencode ended after a tool call, and without an answer"
        return "failed", said or f"opencode ended with status {status}, and without an answer"

    def _failed(self, kind: Failure, reason: str) -> Failed:
        return Failed(kind, reason, self._totals.usage, self._totals.cost_usd)


def _child_events(message: Stored, child: str) -> Iterator[ProviderEvent]:
    """Convert one message of a sub-agent's session to events. `child` is the id of the tool call that started the
    sub-agent."""
    for each in messages_of([message]):
        if isinstance(each, Assistant):
            yield Response(each.content, message.id, each.model, child)
        elif isinstance(each, Tool):
            yield from (Result(block, child) for block in each.content if isinstance(block, ToolResult))


def _failure(error: dict[str, Any]) -> tuple[Failure, str]:
    data = values(error.get("data"))
    name, status = text(error.get("name")), data.get("statusCode")
    kind = _KINDS.get(name) or (_STATUSES.get(status) if isinstance(status, int) else None) or "failed"
    said = text(data.get("message")) or text(error.get("message")) or name or "an error without words"
    return kind, f"{said} (status {status})" if isinstance(status, int) else said


def _said(result: ToolResult) -> str:
    blocks: tuple[Block, ...] = result.content
    return " ".join(block.text for block in blocks if isinstance(block, Text))


def _last_words(stderr: str) -> str:
    """Return the last line of the standard error, without colour codes and a leading "Error:"; empty if there is none."""
    lines = [line.strip() for line in _COLOURS.sub("", stderr).splitlines() if line.strip()]
    return lines[-1].removeprefix("Error:").strip() if lines else ""


class StepTotals:
    """Adds up the tokens and cost of the steps (model responses) of one run. opencode counts cached tokens apart from
    the input, and reasoning tokens apart from the output; here they are included in input and output."""

    def __init__(self) -> None:
        self._counts = [0, 0, 0, 0, 0]
        self._cost = 0.0
        self._steps = 0

    def add(self, step: dict[str, Any]) -> None:
        """Add the `tokens` and `cost` of a finished step (one model response), as opencode prints them."""
        tokens = values(step.get("tokens"))
        cache = values(tokens.get("cache"))
        read, wrote, thought = _count(cache.get("read")), _count(cache.get("write")), _count(tokens.get("reasoning"))
        asked = _count(tokens.get("input")) + read + wrote
        said = _count(tokens.get("output")) + thought
        self._counts = [had + more for had, more in zip(self._counts, (asked, said, read, wrote, thought), strict=True)]
        cost = step.get("cost")
        self._cost += cost if isinstance(cost, (int, float)) else 0.0
        self._steps += 1

    @property
    def usage(self) -> Usage | None:
        return Usage(*self._counts) if self._steps else None

    @property
    def cost_usd(self) -> float | None:
        """The cost in dollars; None if opencode reported 0, because it does so for models without a known price and for
        subscriptions."""
        return self._cost or None


def _count(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


_PRINTED = {"text": "text", "reasoning": "reasoning", "tool": "tool_use"}
"""The type under which opencode prints a part of a message, by the part's type in the database."""
_RECENT = 2
"""How many of the newest messages are searched for running calls: the current response, and a prompt that may follow
it."""


class RunningCalls:
    """Finds the tool calls of one session that opencode has begun but not printed yet. `look` reads them from
    opencode's database while opencode works; if the database has not changed since the last call, it takes
    microseconds."""

    def __init__(self, path: Path, session: str) -> None:
        """Note the newest message of the session now, so that `look` searches only later messages for tool calls.
        `session` is the session's key. `path` is the path of opencode's database, which need not exist yet."""
        self._path = path
        self._session = session
        self._connection: sqlite3.Connection | None = None
        self._version = -1
        self._start = (-1, "")
        self._told: set[str] = set()
        try:
            self._start = self._newest() or self._start
        except sqlite3.Error:
            self.close()

    def look(self) -> list[bytes]:
        """Return a line, in the form that opencode prints, for each tool call that has begun to run since the last call
        of this method. The texts and other finished parts of the response that come before such a call get lines too,
        so that the order is right. The list is empty if nothing is new or the database cannot be read."""
        try:
            connection = self._connected()
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if version == self._version:
                return []
            lines = self._changes(connection)
            self._version = version
        except sqlite3.Error:
            self.close()
            return []
        return lines

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._version = -1

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self._path, "ro", wait=0.0, any_thread=True)
        limit_steps(self._connection, self._path)
        return self._connection

    def _newest(self) -> tuple[int, str] | None:
        query = "SELECT time_created, id FROM message WHERE session_id = ? ORDER BY time_created DESC, id DESC LIMIT 1"
        found: tuple[int, str] | None = self._connected().execute(query, (self._session,)).fetchone()
        return found

    def _changes(self, connection: sqlite3.Connection) -> list[bytes]:
        """Return lines, in the form that opencode prints, for the tool calls that are running now, and for the finished
        parts (such as texts) that come before them in the same message, in order. Parts for which an earlier call of
        this method returned a line are left out. Only the newest messages are searched. They are read by one query, so
        that the lines belong to the same moment."""
        rows = select(
            connection,
            "SELECT id, message_id, data FROM part WHERE message_id IN (SELECT id FROM message WHERE session_id = ? "
            "AND (time_created, id) > (?, ?) ORDER BY time_created DESC, id DESC LIMIT ?) ORDER BY message_id, id",
            (self._session, *self._start, _RECENT),
        )
        messages: dict[str, list[Row]] = {}
        for row in rows:
            messages.setdefault(row["message_id"], []).append(row)
        return [line for parts in messages.values() for line in self._begun([_part(row) for row in parts])]

    def _begun(self, parts: list[dict[str, Any]]) -> list[bytes]:
        running = [at for at, part in enumerate(parts) if _status(part) == "running" and part["id"] not in self._told]
        if not running:
            return []
        lines = []
        for part in parts[: running[-1] + 1]:
            if part["id"] not in self._told and (_status(part) == "running" or values(part.get("time")).get("end")):
                self._told.add(part["id"])
                lines.append(msgspec.json.encode({"type": _PRINTED[part["type"]], "part": part}))
        return lines


def _part(row: Row) -> dict[str, Any]:
    """Convert a database row to a part of a message (a piece such as a text or a tool call), with its id and that of
    the message, in the form in which opencode prints it. If opencode does not print parts of this type, return only the
    two ids."""
    try:
        data = values(msgspec.json.decode(row["data"]))
    except (msgspec.DecodeError, TypeError):
        data = {}
    kept = data if data.get("type") in _PRINTED else {}
    return {**kept, "id": row["id"], "messageID": row["message_id"]}


def _status(part: dict[str, Any]) -> Any:
    return values(part.get("state")).get("status")
