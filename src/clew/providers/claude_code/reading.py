"""From a session's file to a conversation in Clew's own words."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clew.errors import Corrupt, InvalidInput
from clew.messages import Assistant, Message, Tool, ToolCall, ToolResult, User
from clew.messages.dialects import Loss, from_dialect
from clew.providers.base import Conversation, values
from clew.providers.claude_code.chain import branch
from clew.providers.claude_code.events import SYNTHETIC
from clew.providers.claude_code.rows import Row, read_rows

__all__ = ["last_cwd", "prompt_of", "read", "time_of", "title_of"]

_TITLES = (("custom-title", "customTitle"), ("ai-title", "aiTitle"), ("summary", "summary"))
"""The best first: what a user called it, what a model did, what older versions kept."""
_TITLE_LENGTH = 80
_OF_COMMANDS = "<local-command-"
_COMMANDS = ("<command-name>", "<command-message>")
_NO_PROMPT = ("isMeta", "isSidechain", "isCompactSummary")
_GO_ON = "Continue from where you left off."
_BEFORE = Loss(
    0, None, "what was said before the conversation was compacted", "Claude Code itself goes on from the summary"
)


def read(path: Path) -> Conversation:
    """The conversation that the program would go on with. What it tells the model beside it is left out: reminders, lists
    of its agents and skills, words of its own about errors and interruptions."""
    found = read_rows(path)
    rows, is_compacted = branch(found, path)
    messages = _settled(_messages(_without_noise(rows), path))
    models = [message.model for message in messages if isinstance(message, Assistant) and message.model]
    times = [time for row in found.rows if (time := time_of(row))]
    return Conversation(
        messages=tuple(messages),
        cwd=last_cwd(found.rows),
        title=title_of(found.rows),
        model=models[-1] if models else "",
        created_at=min(times, default=None),
        updated_at=max(times, default=None),
        losses=(_BEFORE,) if is_compacted else (),
    )


def _without_noise(rows: list[Row]) -> Iterable[Row]:
    for row, after in zip(rows, [*rows[1:], {}], strict=True):
        message, text = values(row.get("message")), _text_of(row)
        if message.get("model") == SYNTHETIC or row.get("isApiErrorMessage") is True:
            continue
        if text.startswith(_OF_COMMANDS) or (row.get("isMeta") is True and text == _GO_ON):
            continue
        if text.startswith(_COMMANDS) and _text_of(after).startswith(_OF_COMMANDS):
            continue
        yield row


def _messages(rows: Iterable[Row], path: Path) -> Iterable[Message]:
    """One after the other; the rows of one response are joined."""
    response: tuple[str, Assistant] | None = None
    for row in rows:
        message = values(row.get("message"))
        for said in _parsed(message, row, path):
            if not isinstance(said, Assistant):
                if response:
                    yield response[1]
                    response = None
                if said.content:
                    yield said
            elif response and response[0] == message.get("id"):
                joined = Assistant(response[1].content + said.content, said.model, said.stop)
                response = (response[0], joined)
            else:
                if response:
                    yield response[1]
                response = (str(message.get("id") or row["uuid"]), said)
    if response:
        yield response[1]


def _parsed(message: dict[str, Any], row: Row, path: Path) -> tuple[Message, ...]:
    try:
        return from_dialect(message, "anthropic")
    except InvalidInput as error:
        raise Corrupt(f"{path}: the message of the row {row['uuid']} cannot be read: {error}") from None


def _settled(messages: Iterable[Message]) -> list[Message]:
    """The results of a response in one message right behind it, in the order of its calls."""
    settled: list[Message] = []
    turn: list[Message] = []
    for message in messages:
        if isinstance(message, Assistant):
            settled += _turn(turn)
            turn = []
        turn.append(message)
    return settled + _turn(turn)


def _turn(turn: list[Message]) -> list[Message]:
    results = [block for message in turn if isinstance(message, Tool) for block in message.content]
    if not results or not isinstance(turn[0], Assistant):
        return turn
    order = {block.id: number for number, block in enumerate(turn[0].content) if isinstance(block, ToolCall)}
    results.sort(
        key=lambda block: order.get(block.call_id, len(order)) if isinstance(block, ToolResult) else len(order)
    )
    return [turn[0], Tool(tuple(results)), *(message for message in turn[1:] if isinstance(message, User))]


def _text_of(row: Row) -> str:
    """The text of a message that is nothing but one text."""
    content: Any = values(row.get("message")).get("content")
    if isinstance(content, list) and len(content) == 1:
        content = values(content[0]).get("text")
    return content if isinstance(content, str) else ""


def time_of(row: Row) -> datetime | None:
    stamp = row.get("timestamp")
    try:
        time = datetime.fromisoformat(stamp) if isinstance(stamp, str) else None
    except ValueError:
        return None
    return time.replace(tzinfo=time.tzinfo or UTC) if time else None


def last_cwd(rows: list[Row]) -> str:
    """The folder that was worked in last."""
    return next((row["cwd"] for row in reversed(rows) if isinstance(row.get("cwd"), str)), "")


def title_of(rows: list[Row]) -> str:
    """What the session is called, or the first line of its first prompt."""
    for kind, field in _TITLES:
        for row in reversed(rows):
            if row.get("type") == kind and isinstance(row.get(field), str) and row[field].strip():
                return _line(row[field])
    return next((_line(text) for row in rows if (text := prompt_of(row))), "")


def prompt_of(row: Row) -> str:
    """The words of a prompt; empty for whatever else a row is."""
    if row.get("type") != "user" or any(row.get(mark) is True for mark in _NO_PROMPT):
        return ""
    content: Any = values(row.get("message")).get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    text = next((words for part in parts if isinstance(words := values(part).get("text"), str) and words.strip()), "")
    return "" if text.startswith((_OF_COMMANDS, *_COMMANDS)) else text


def _line(text: str) -> str:
    line = text.strip().splitlines()[0].strip()
    return line if len(line) <= _TITLE_LENGTH else f"{line[: _TITLE_LENGTH - 1]}…"
