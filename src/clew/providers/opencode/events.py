"""What `opencode run --format json` prints, in Clew's words."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from clew.errors import ClewError
from clew.messages import Assistant, Block, Text, Tool, ToolResult
from clew.providers.base import values
from clew.providers.happenings import Failed, Failure, Finished, Happening, Other, Response, Result, Retry
from clew.providers.opencode.blocks import text, thinking_block, tool_blocks
from clew.providers.opencode.reading import Stored, messages_of
from clew.providers.opencode.spending import Spending

__all__ = ["Children", "OpenCodeReader"]

Children = Callable[[str, int], Sequence[Stored]]
"""The messages of a sub-agent's session since a time: they are in the database alone, and not in what is printed."""
_TRIES = 10
"""Responses in a row that break off, after which it is said to have failed. opencode gives up some kinds of them after 6,
and says why; others it tries for ever."""
_GOES_ON = frozenset({"tool-calls", "unknown"})
"""Why a step ended, where opencode takes another."""
_KINDS: dict[str, Failure] = {
    "ProviderAuthError": "login",
    "ContextOverflowError": "context",
    "MessageAbortedError": "stopped",
}
_STATUSES: dict[int, Failure] = {401: "login", 402: "limit", 403: "login", 413: "context", 429: "limit"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DEEPEST = 8


class OpenCodeReader:
    """There is no line that says that a prompt is answered: the last step says why it ended, and the program ends."""

    def __init__(self, children: Children, model: Callable[[], str] = str, asked: str = "") -> None:
        """`asked` is the model that the prompt is for, if one is named; else `model` is asked once there is an answer."""
        self._children = children
        self._asked = asked
        self._model = model
        self._spending = Spending()
        self._words: list[str] = []
        self._reason = ""
        """Why the last step ended; empty before the first did, and while another is on its way."""
        self._step = ""
        self._broken = 0
        self._refused = ""
        self._failure: tuple[Failure, str] | None = None
        self._over = False
        self._parts: set[str] = set()
        """The parts that were read. One may come twice: as `RunningCalls` sees it, and as opencode prints it."""

    def read(self, line: bytes) -> Iterable[Happening]:
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
            self._reason = ""  # opencode told the model to go on: what came before was a summary, and no answer
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

    def end(self, status: int, stderr: str) -> Iterable[Happening]:
        if self._over:
            return []
        self._over = True
        if self._failure is None and self._reason and self._reason not in _GOES_ON:
            answer = "\n".join(self._words)
            return [Finished(answer, self._spending.usage, self._spending.cost_usd, self._model())]
        return [self._failed(*(self._failure or self._why(status, stderr)))]

    def _start(self, message: str) -> list[Happening]:
        """The same message begun twice is a response that broke off."""
        again = message == self._step
        self._step, self._reason = message, ""
        self._words.clear()
        return self._broke_off() if again else []

    def _finish(self, part: dict[str, Any]) -> list[Happening]:
        self._spending.add(part)
        self._step, self._reason = "", text(part.get("reason")) or "unknown"
        if self._reason not in _GOES_ON:
            self._failure = None  # a conversation that was too long at first has been compacted
        if self._reason == "unknown":
            return self._broke_off()
        self._broken = 0
        return []

    def _broke_off(self) -> list[Happening]:
        self._broken += 1
        if self._broken < _TRIES:
            return [Retry("the response broke off")]
        if self._over:
            return []
        self._over = True
        return [self._failed("failed", f"the response broke off {_TRIES} times in a row")]

    def _tool(self, part: dict[str, Any]) -> Iterator[Happening]:
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
        """Whether this part was read before. From now on it is."""
        name = text(part.get("id"))
        known = name in self._parts
        self._parts |= {name} if name else set()
        return known

    def _child(self, part: dict[str, Any], depth: int) -> Iterator[Happening]:
        """What the sub-agent of a call said and did, and what that cost."""
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
                    self._spending.add(step)
                yield from self._child(step, depth + 1)
            yield from _told(message, child)

    def _why(self, status: int, stderr: str) -> tuple[Failure, str]:
        """Why there is no answer, where no event says it."""
        if status < 0:
            return "stopped", f"opencode was ended by {_signal(-status)}"
        said = _last_words(stderr)
        if said == "Session not found":
            return "session", said
        if status == 0 and self._reason == "tool-calls":
            return "failed", self._refused or "opencode ended after a tool call, and without an answer"
        return "failed", said or f"opencode ended with status {status}, and without an answer"

    def _failed(self, kind: Failure, reason: str) -> Failed:
        return Failed(kind, reason, self._spending.usage, self._spending.cost_usd)


def _told(message: Stored, child: str) -> Iterator[Happening]:
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
    """The last line of an error, without its colours and the word that it begins with."""
    lines = [line.strip() for line in _COLOURS.sub("", stderr).splitlines() if line.strip()]
    return lines[-1].removeprefix("Error:").strip() if lines else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
