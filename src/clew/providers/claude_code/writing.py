"""From a conversation to the file of a session that Claude Code goes on with."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from clew.messages import System
from clew.messages.dialects import Loss, losses, to_dialect
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
    for number, said in enumerate(to_dialect(conversation.messages, "anthropic")["messages"]):
        row_id = uuid.uuid5(uuid.UUID(key), str(number))
        message = _response(said, row_id, conversation.model) if said["role"] == "assistant" else _prompt(said)
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
    return tuple(sorted(found, key=lambda loss: (loss.message, -1 if loss.block is None else loss.block)))
