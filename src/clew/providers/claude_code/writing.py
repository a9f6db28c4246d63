"""From a conversation to the file of a session that Claude Code goes on with."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from clew.messages import Assistant, System, Thinking
from clew.messages.dialects import Loss, losses, to_dialect
from clew.messages.dialects.anthropic import origins
from clew.providers.base import Conversation
from clew.providers.claude_code.rows import Row

__all__ = ["session_bytes", "writing_losses"]

_NO_MODEL = "unknown"


def session_bytes(conversation: Conversation, key: str, cwd: str) -> bytes:
    """A file of rows. The ids are made of the key, so that the same conversation gives the same bytes."""
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
            "timestamp": _stamp(start + timedelta(milliseconds=number)),
        }
        parent = str(row_id)
    if conversation.title:
        yield {"type": "ai-title", "aiTitle": conversation.title, "sessionId": key}


def _model_of(conversation: Conversation, origin: int) -> str:
    """The model of a response, by the name that Claude Code knows it by. It gives signed thinking back only to the model
    that its row names, so the name must come along: without the service that opencode and Clew put before it."""
    message = conversation.messages[origin]
    name = (message.model if isinstance(message, Assistant) else "") or conversation.model
    return name.rpartition("/")[2].removeprefix("anthropic:")


def _prompt(said: dict[str, Any]) -> dict[str, Any]:
    """A prompt that is one text is that text itself, as the program writes it."""
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


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def writing_losses(conversation: Conversation) -> tuple[Loss, ...]:
    """What the dialect cannot say, and what a session has no place for."""
    found = losses(conversation.messages, "anthropic")
    for index, message in enumerate(conversation.messages):
        if not isinstance(message, System):
            break
        why = "a session of Claude Code has none; give them as the system prompt"
        found.append(Loss(index, None, "instructions at the start", why))
    found += _thinking_losses(conversation)
    return tuple(sorted(found, key=lambda loss: (loss.message, -1 if loss.block is None else loss.block)))


def _thinking_losses(conversation: Conversation) -> Iterator[Loss]:
    """Signed thinking that is written, and that the program gives back to no model, as no row names the one it is of."""
    firsts = origins(conversation.messages)
    for index, message in enumerate(conversation.messages):
        row = max((first for first in firsts if first <= index), default=index)
        if not isinstance(message, Assistant) or _is_named(conversation, index, row):
            continue
        for number, block in enumerate(message.content):
            if isinstance(block, Thinking) and (block.signature or (block.encrypted and not block.text)):
                yield Loss(index, number, "thinking", "Claude Code gives it back only to its model, which is not known")


def _is_named(conversation: Conversation, index: int, row: int) -> bool:
    name = _model_of(conversation, index)
    return "claude" in name and name == _model_of(conversation, row)
