"""From opencode's messages and parts to Clew's conversation: what its model would be told, and in that order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from clew.errors import Corrupt
from clew.messages import Assistant, Block, Message, Text, Tool, User
from clew.messages.dialects import Loss
from clew.providers.base import Conversation, values
from clew.providers.opencode.blocks import file_block, text, thinking_block, tool_blocks
from clew.providers.opencode.folders import load, manifest_rows, rows_of
from clew.providers.opencode.rows import Row

__all__ = ["Stored", "messages_of", "model_name", "read", "stored"]

_NOT_SENT = frozenset({"text/plain", "application/x-directory"})
"""Kinds of files that opencode gives the model as a text beside them."""


class Stored(msgspec.Struct, frozen=True):
    """A message of opencode with its parts."""

    id: str
    created: int
    info: dict[str, Any]
    parts: tuple[dict[str, Any], ...]

    @property
    def role(self) -> str:
        return text(self.info.get("role"))

    def part(self, kind: str) -> dict[str, Any] | None:
        return next((part for part in self.parts if part.get("type") == kind), None)


def stored(message: Row, parts: Iterable[Row]) -> Stored:
    """`Corrupt` if a row does not hold what opencode puts there."""
    read = tuple({**_data(part), "id": part["id"]} for part in parts)
    return Stored(message["id"], message["time_created"], _data(message), read)


def read(folder: Path) -> Conversation:
    manifest = load(folder)
    sheet = manifest.sessions[0]
    session = next(row for table, row in manifest_rows(sheet) if table == "session")
    pending: list[tuple[Row, list[Row]]] = []
    for table, row in rows_of(folder, sheet):
        if table == "message":
            pending.append((row, []))
        elif pending:
            pending[-1][1].append(row)
    everything = [stored(message, parts) for message, parts in pending]
    current, losses = _current(everything, _json(session.get("revert")))
    return Conversation(
        messages=messages_of(current),
        cwd=text(session.get("directory")),
        title=text(session.get("title")),
        model=_model(session, everything),
        created_at=_time(session.get("time_created")),
        updated_at=_time(session.get("time_updated")),
        losses=losses,
    )


def messages_of(messages: Sequence[Stored]) -> tuple[Message, ...]:
    found: list[Message] = []
    for message in messages:
        if message.role == "user":
            found += _prompt(message)
        elif message.role == "assistant":
            found += _response(message)
    return tuple(found)


def model_name(info: dict[str, Any]) -> str:
    """As opencode's command takes it."""
    provider, model = text(info.get("providerID")), text(info.get("modelID") or info.get("id"))
    return f"{provider}/{model}" if provider and model else model


def _current(messages: list[Stored], revert: dict[str, Any]) -> tuple[list[Stored], tuple[Loss, ...]]:
    """What counts: without what the user took back, and with a summary in place of what it stands for."""
    messages = _before(messages, revert)
    at = _compaction(messages)
    if at is None:
        return messages, ()
    asked = messages[at]
    answer = next(number for number, message in enumerate(messages) if number > at and _sums_up(message, asked))
    kept = messages[_place(messages[:at], values(asked.part("compaction")).get("tail_start_id")) : at]
    loss = Loss(0, None, f"{at - len(kept)} earlier messages", "opencode made a summary of them, which stands here")
    return [*messages[at : answer + 1], *kept, *messages[answer + 1 :]], (loss,)


def _before(messages: list[Stored], revert: dict[str, Any]) -> list[Stored]:
    """Without the message that the user went back to before, or the rest of it, and all behind it."""
    at = _place(messages, revert.get("messageID"))
    since = revert.get("partID")
    if at == len(messages) or not since:
        return messages[:at]
    names = [part["id"] for part in messages[at].parts]
    left = messages[at].parts[: names.index(since) if since in names else 0]
    return [*messages[:at], msgspec.structs.replace(messages[at], parts=left)]


def _place(messages: list[Stored], name: Any) -> int:
    """Where the message of this name stands; behind all if there is none."""
    return next((at for at, message in enumerate(messages) if message.id == name), len(messages))


def _compaction(messages: list[Stored]) -> int | None:
    """The place of the last request for a summary that was answered."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].part("compaction") and any(_sums_up(later, messages[at]) for later in messages[at + 1 :]):
            return at
    return None


def _sums_up(message: Stored, asked: Stored) -> bool:
    info = message.info
    return (
        bool(info.get("summary") and info.get("finish") and not info.get("error")) and info.get("parentID") == asked.id
    )


def _prompt(message: Stored) -> list[Message]:
    """What the user said. Words that opencode put beside it count only where they are the content of a file."""
    has_files = message.part("file") is not None
    blocks: list[Block] = []
    for part in message.parts:
        kind = part.get("type")
        if kind == "text" and not part.get("ignored") and (has_files or not part.get("synthetic")):
            blocks.append(Text(text(part.get("text"))))
        elif kind == "file" and part.get("mime") not in _NOT_SENT:
            blocks.append(file_block(part))
        elif kind == "compaction":
            blocks.append(Text("What did we do so far?"))
        elif kind == "subtask":
            blocks.append(Text(text(part.get("prompt"))))
    return [User(tuple(blocks))] if blocks else []


def _response(message: Stored) -> list[Message]:
    """The steps of a response, each with the results of its calls. One that ended in an error is not told to the model,
    unless it was stopped with something said."""
    error = values(message.info.get("error"))
    spoke = any(part.get("type") in ("text", "tool") for part in message.parts)
    if error and not (error.get("name") == "MessageAbortedError" and spoke):
        return []
    found: list[Message] = []
    model, stop = model_name(message.info), text(message.info.get("finish"))
    for step in _steps(message.parts):
        blocks: list[Block] = []
        results: list[Block] = []
        for part in step:
            kind = part.get("type")
            if kind == "text" and part.get("text"):
                blocks.append(Text(text(part.get("text"))))
            elif kind == "reasoning":
                blocks.append(thinking_block(part))
            elif kind == "tool":
                call, result = tool_blocks(part)
                blocks.append(call)
                results += [result] if result else []
        if blocks:
            found.append(Assistant(tuple(blocks), model, stop))
        if results:
            found.append(Tool(tuple(results)))
    return found


def _steps(parts: tuple[dict[str, Any], ...]) -> list[list[dict[str, Any]]]:
    steps: list[list[dict[str, Any]]] = [[]]
    for part in parts:
        if part.get("type") == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    return steps


def _model(session: Row, messages: list[Stored]) -> str:
    answered = [message.info for message in messages if message.role == "assistant"]
    return model_name(_json(session.get("model"))) or (model_name(answered[-1]) if answered else "")


def _data(row: Row) -> dict[str, Any]:
    try:
        return msgspec.json.decode(row["data"], type=dict[str, Any])
    except (msgspec.DecodeError, TypeError) as error:
        raise Corrupt(f"{row['id']} of opencode's conversation {row['session_id']} is damaged: {error}") from error


def _json(value: Any) -> dict[str, Any]:
    """The object that a column holds as text; empty if it holds none."""
    if not isinstance(value, str):
        return {}
    try:
        return values(msgspec.json.decode(value))
    except msgspec.DecodeError:
        return {}


def _time(value: Any) -> datetime | None:
    return datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, (int, float)) else None
