"""Converts a session file of Claude Code to a `Conversation` and back.

A session file has rows: one JSON object a line. Each message row names the row before it, its parent, so the rows form
a tree. The path from the last message back to the root is the conversation that Claude Code would continue.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from clew.errors import Corrupt, InvalidInput
from clew.messages import Assistant, Message, System, Thinking, Tool, ToolCall, ToolResult, User
from clew.messages.dialects import Loss, from_dialect, losses, to_dialect
from clew.messages.dialects.anthropic import origins
from clew.providers.base import Conversation
from clew.providers.claude_code.rows import SYNTHETIC, Row, Rows, is_said, read_rows
from clew.providers.fields import format_time, parse_time, values

__all__ = [
    "Branch",
    "branch",
    "last_cwd",
    "prompt_of",
    "read",
    "session_bytes",
    "title_of",
    "writing_losses",
]


_TITLES = (("custom-title", "customTitle"), ("ai-title", "aiTitle"), ("summary", "summary"))
"""Row types that hold a session's title, each with the field that holds it, best first: the user's title, the model's,
and the summary of older versions."""
_TITLE_LENGTH = 80
_OF_COMMANDS = "<local-command-"
_COMMANDS = ("<command-name>", "<command-message>")
_NO_PROMPT = ("isMeta", "isSidechain", "isCompactSummary")
_GO_ON = "Continue from where you left off."
_BEFORE = Loss(
    0, None, "what was said before the conversation was compacted", "Claude Code itself continues from the summary"
)


def read(path: Path) -> Conversation:
    """Read a session file as the conversation that Claude Code would continue.

    What Claude Code itself tells the model is left out: reminders, lists of its agents and skills, and its own words
    about errors and interruptions. Raises `Corrupt` if a damaged line makes the conversation unreadable.
    """
    found = read_rows(path)
    rows, is_compacted = branch(found, path)
    messages = _settled(_messages(_without_noise(rows), path))
    models = [message.model for message in messages if isinstance(message, Assistant) and message.model]
    times = [time for row in found.rows if (time := parse_time(row.get("timestamp")))]
    return Conversation(
        messages=tuple(messages),
        cwd=last_cwd(found.rows),
        title=title_of(found.rows),
        model=models[-1] if models else "",
        created_at=min(times, default=None),
        updated_at=max(times, default=None),
        losses=(_BEFORE,) if is_compacted else (),
    )


class Branch(NamedTuple):
    """The part of a session file that Claude Code would continue: the rows (lines) with the messages of the
    conversation. Rows that only belong to an abandoned branch, an earlier course of the conversation, are left out."""

    rows: list[Row]
    """The rows that hold messages, in the order of the conversation."""
    is_compacted: bool
    """Whether these messages begin with a summary that replaces earlier ones."""


def branch(found: Rows, path: Path) -> Branch:
    """Return the rows with the messages of the conversation that Claude Code would continue, and whether they begin
    with a summary of earlier messages. `found` are all rows (lines of JSON) of the session file at `path`.

    Each row names its parent, the row before it. The result has the rows on the path from the root to the last message
    of the file, in this order. The results of parallel tool calls are not on this path, because each is a child of its
    own call's row; they are included too. The result has no rows if the file has no messages. Raises `Corrupt`, naming
    the file, if a damaged line interrupts the path.
    """
    said = [row for row in found.rows if is_said(row)]
    if not said and found.damaged:
        raise _corrupt(found, path)
    if not said:
        return Branch([], False)
    line = _branch_line(said[-1], found, path)
    rows = [row for row in _with_siblings(line, said) if is_said(row)]
    return Branch(rows, any(row.get("subtype") == "compact_boundary" for row in line))


def _branch_line(leaf: Row, found: Rows, path: Path) -> list[Row]:
    by_id = {row["uuid"]: row for row in found.rows if isinstance(row.get("uuid"), str)}
    parents = _parents(found.rows)
    line: list[Row] = []
    seen: set[str] = set()
    row: Row | None = leaf
    while row is not None and row["uuid"] not in seen:
        line.append(row)
        seen.add(row["uuid"])
        parent = parents.get(row["uuid"])
        row = by_id.get(parent) if parent else None
        if parent and row is None and found.damaged:
            raise _corrupt(found, path)
    return line[::-1]


def _corrupt(found: Rows, path: Path) -> Corrupt:
    return Corrupt(
        f"{path}, line {found.damaged[0]} is damaged, and what follows needs it. Restore the file from a copy, or fork "
        "the thread at an earlier turn"
    )


def _parents(rows: list[Row]) -> dict[str, str | None]:
    """Return a dict from the id of each row (line of a session file) to the id of its parent, which is the row before
    it in the conversation; None for a row without a parent.

    A compaction replaces earlier messages by a summary, but may keep some of them. The kept rows stand before the
    summary in the file and come after it in the conversation. So their parents in the dict differ from those that the
    file names.
    """
    parents: dict[str, str | None] = {}
    for row in rows:
        if isinstance(row.get("uuid"), str):
            parents[row["uuid"]] = row["parentUuid"] if isinstance(row.get("parentUuid"), str) else None
    for boundary in (row for row in rows if row.get("subtype") == "compact_boundary"):
        kept = values(values(boundary.get("compactMetadata")).get("preservedSegment"))
        head, anchor, tail = (kept.get(name) for name in ("headUuid", "anchorUuid", "tailUuid"))
        if head in parents and tail in parents and isinstance(anchor, str):
            parents.update({child: tail for child, parent in parents.items() if parent == anchor})
            parents[head] = anchor
    return parents


def _with_siblings(line: list[Row], said: list[Row]) -> Iterable[Row]:
    """Yield the rows of `line` together with rows of the same responses that are not in it. A row is one line of a
    session file and names its parent row; `line` is the path from the first row to the last message. A response may be
    written as several rows of which only some are on this path. All its rows are yielded, and then those results of its
    tool calls that are not on the path. `said` are all message rows of the file."""
    taken = {row["uuid"] for row in line}
    responses: dict[str, list[Row]] = {}
    results: dict[str, list[Row]] = {}
    for row in said:
        if row["type"] == "assistant":
            responses.setdefault(_response_of(row), []).append(row)
        elif isinstance(row.get("parentUuid"), str) and _is_result(row):
            results.setdefault(row["parentUuid"], []).append(row)
    written: set[str] = set()
    for row in line:
        if row.get("type") != "assistant":
            yield row
            continue
        response = _response_of(row)
        if response in written:
            continue
        written.add(response)
        parts = responses.get(response, [row])
        yield from parts
        for part in parts:
            yield from (result for result in results.get(part["uuid"], ()) if result["uuid"] not in taken)


def _response_of(row: Row) -> str:
    """Return the id of the model response to which a row (one line of a session file) belongs; the row's own id if it
    names no response."""
    found = values(row.get("message")).get("id")
    return found if isinstance(found, str) and found else row["uuid"]


def _is_result(row: Row) -> bool:
    content: Any = values(row.get("message")).get("content")
    return isinstance(content, list) and any(values(part).get("type") == "tool_result" for part in content)


_NO_ROW: Row = {}


def _without_noise(rows: list[Row]) -> Iterable[Row]:
    for row, after in zip_longest(rows, rows[1:], fillvalue=_NO_ROW):
        message, text = values(row.get("message")), _text_of(row)
        if message.get("model") == SYNTHETIC or row.get("isApiErrorMessage") is True:
            continue
        if text.startswith(_OF_COMMANDS) or (row.get("isMeta") is True and text == _GO_ON):
            continue
        if text.startswith(_COMMANDS) and _text_of(after).startswith(_OF_COMMANDS):
            continue
        yield row


def _messages(rows: Iterable[Row], path: Path) -> Iterable[Message]:
    """Convert rows, which are lines of the session file `path`, to messages, in order. Consecutive rows of one response
    become one message. Raises `Corrupt`, naming `path`, if a row's message cannot be read."""
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
    """Return the messages, with all tool results of a response gathered in one message right after the response. The
    results are in the order of the response's calls."""
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
    """Return the text of the message in a row (one line of a session file) if the message consists of exactly one text;
    otherwise an empty string."""
    content: Any = values(row.get("message")).get("content")
    if isinstance(content, list) and len(content) == 1:
        content = values(content[0]).get("text")
    return content if isinstance(content, str) else ""


def last_cwd(rows: list[Row]) -> str:
    """Return the working folder that was named last in these rows, which are lines of a session file; empty if no row
    names one."""
    return next((row["cwd"] for row in reversed(rows) if isinstance(row.get("cwd"), str)), "")


def title_of(rows: list[Row]) -> str:
    """Return the title of the session whose rows (lines of a session file) are given, or, if no row holds one, the
    first prompt; empty if there is no prompt either. Of a text of several lines only the first line is returned, cut to
    80 characters."""
    for kind, field in _TITLES:
        for row in reversed(rows):
            if row.get("type") == kind and isinstance(row.get(field), str) and row[field].strip():
                return _line(row[field])
    return next((_line(text) for row in rows if (text := prompt_of(row))), "")


def prompt_of(row: Row) -> str:
    """Return the text of a row (one line of a session file) that holds a prompt of the user; empty for every other row,
    also for commands like `/compact`."""
    if row.get("type") != "user" or any(row.get(mark) is True for mark in _NO_PROMPT):
        return ""
    content: Any = values(row.get("message")).get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    text = next((words for part in parts if isinstance(words := values(part).get("text"), str) and words.strip()), "")
    return "" if text.startswith((_OF_COMMANDS, *_COMMANDS)) else text


def _line(text: str) -> str:
    line = text.strip().splitlines()[0].strip()
    return line if len(line) <= _TITLE_LENGTH else f"{line[: _TITLE_LENGTH - 1]}…"


_NO_MODEL = "unknown"


def session_bytes(conversation: Conversation, key: str, cwd: str) -> bytes:
    """Return the conversation as the content of a session file with the session id `key`, a UUID. `cwd` is the working
    folder that is written into each message's row (line of the file) if the conversation names none. The row ids are
    derived from `key`, so a conversation that has a date always gives the same bytes."""
    return b"".join(msgspec.json.encode(row) + b"\n" for row in _rows(conversation, key, cwd))


def _rows(conversation: Conversation, key: str, cwd: str) -> Iterator[Row]:
    start = conversation.created_at or conversation.updated_at or datetime.now(UTC)
    parent: str | None = None
    written = to_dialect(conversation.messages, "anthropic")["messages"]
    for number, (said, origin) in enumerate(zip(written, origins(conversation.messages), strict=True)):
        row_id = uuid.uuid5(uuid.UUID(key), str(number))
        model = _model_of(conversation, origin)
        message = _response(said, row_id, model) if said["role"] == "assistant" else _prompt(said)
        yield {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": conversation.cwd or cwd,
            "sessionId": key,
            "type": said["role"],
            "message": message,
            "uuid": str(row_id),
            "timestamp": format_time(start + timedelta(milliseconds=number)),
        }
        parent = str(row_id)
    if conversation.title:
        yield {"type": "ai-title", "aiTitle": conversation.title, "sessionId": key}


def _model_of(conversation: Conversation, origin: int) -> str:
    """Return the name of the model to write into the row (the line of a session file) of a response, spelt as Claude
    Code does. `origin` is the index of the response in the messages of the conversation.

    Claude Code sends signed thinking back only to the model that the row names. So the recorded name is kept, without a
    prefix such as `anthropic:` or `anthropic/` that Clew and opencode put before it.
    """
    message = conversation.messages[origin]
    name = (message.model if isinstance(message, Assistant) else "") or conversation.model
    return name.rpartition("/")[2].removeprefix("anthropic:")


def _prompt(said: dict[str, Any]) -> dict[str, Any]:
    """Return the user message `said`, which is in Anthropic's format, in the form in which Claude Code writes it into a
    session file: content that is a single text becomes a plain string."""
    content = said["content"]
    if len(content) == 1 and set(content[0]) == {"type", "text"}:
        content = content[0]["text"]
    return {"role": "user", "content": content}


def _response(said: dict[str, Any], row_id: uuid.UUID, model: str) -> dict[str, Any]:
    calls = any(part["type"] == "tool_use" for part in said["content"])
    return {
        "id": f"msg_{row_id.hex}",
        "type": "message",
        "role": "assistant",
        "model": model or _NO_MODEL,
        "content": said["content"],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def writing_losses(conversation: Conversation) -> tuple[Loss, ...]:
    """Return what is lost when this conversation is written as a session file of Claude Code, in the order of the
    messages. Lost are blocks that Anthropic's message format cannot express, instructions at the start of the
    conversation, for which a session file has no place, and thinking that Claude Code would send to no model."""
    found = losses(conversation.messages, "anthropic")
    for index, message in enumerate(conversation.messages):
        if not isinstance(message, System):
            break
        why = "a session of Claude Code cannot hold them; pass them as system_prompt"
        found.append(Loss(index, None, "instructions at the start", why))
    found += _thinking_losses(conversation)
    return tuple(sorted(found, key=lambda loss: (loss.message, -1 if loss.block is None else loss.block)))


def _thinking_losses(conversation: Conversation) -> Iterator[Loss]:
    """Yield a loss for each block of signed or encrypted thinking that is written to a session file but will reach no
    model. Claude Code sends a block of thinking only to the model that is named in the row (the line of the file) of
    the block. So the block is lost if the row names no model of Anthropic, or another one than the model that wrote the
    block."""
    firsts = origins(conversation.messages)
    for index, message in enumerate(conversation.messages):
        row = max((first for first in firsts if first <= index), default=index)
        if not isinstance(message, Assistant) or _is_named(conversation, index, row):
            continue
        for number, block in enumerate(message.content):
            if isinstance(block, Thinking) and (block.signature or (block.encrypted and not block.text)):
                why = "Claude Code sends it only to the model that wrote it, which is unknown"
                yield Loss(index, number, "thinking", why)


def _is_named(conversation: Conversation, index: int, row: int) -> bool:
    name = _model_of(conversation, index)
    return "claude" in name and name == _model_of(conversation, row)
