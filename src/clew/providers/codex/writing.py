"""From a conversation in Clew's own words to a rollout that Codex goes on with."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from clew.messages import Block, File, Image, Message, Text, ToolResult
from clew.messages.dialects import Loss, losses, to_dialect
from clew.providers._files import put
from clew.providers.base import Conversation
from clew.providers.codex.driving import SEEN_VERSION, checked_key, meta_line
from clew.providers.codex.homes import born_at
from clew.providers.codex.native import ROLLOUT
from clew.providers.codex.prompts import MARKS, USER_MARKS
from clew.providers.codex.rollout import Record, line

__all__ = ["write_rollout"]


def write_rollout(conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
    """The same conversation and key give the same bytes. A record that Codex cannot read it leaves out without a word, so
    nothing is written that it has no form for."""
    born = born_at(checked_key(key))
    moment = conversation.created_at or born or datetime.now(UTC)
    lost: list[Loss] = []
    messages = [_fitting(message, at, lost) for at, message in enumerate(conversation.messages)]
    lost += losses(messages, "openai-responses")
    last = conversation.updated_at or moment
    rows = [meta_line(key, conversation.cwd, moment, SEEN_VERSION)]
    for item in to_dialect(messages, "openai-responses"):
        rows += _lines(item, last)
    put(folder / ROLLOUT, b"".join(rows))
    return tuple(sorted(lost, key=lambda loss: (loss.message, -1 if loss.block is None else loss.block)))


def _fitting(message: Message, at: int, lost: list[Loss]) -> Message:
    """Without documents, which Codex has no place for."""
    blocks = tuple(_fitting_block(block, at, index, lost) for index, block in enumerate(message.content))
    return message if blocks == message.content else msgspec.structs.replace(message, content=blocks)


def _fitting_block(block: Block, at: int, index: int, lost: list[Loss]) -> Block:
    if isinstance(block, ToolResult):
        content: Any = tuple(_fitting_block(inner, at, index, lost) for inner in block.content)
        return block if content == block.content else msgspec.structs.replace(block, content=content)
    if isinstance(block, File) or (isinstance(block, Image) and block.data is None and block.url is None):
        lost.append(
            Loss(at, index, "a document, or a picture kept elsewhere", "Codex has no place for it; words are sent")
        )
        return Text(_words(block))
    return block


def _words(block: File | Image) -> str:
    kind = "file" if isinstance(block, File) else "image"
    named = [part for part in (getattr(block, "name", ""), block.media_type, block.url, block.file_id) if part]
    return f"[{kind}: {', '.join(named)}]" if named else f"[{kind}]"


def _lines(item: Record, moment: datetime) -> Iterator[bytes]:
    """An item as the model is told it, and what was said in it as users are shown it."""
    if item["type"] != "message":
        yield line("response_item", item, moment)
        return
    content, role = item["content"], item["role"]
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    message = {"type": "message", "role": role, "content": content}
    if role in ("system", "developer"):
        marks = {name: value * len(content) for name, value in USER_MARKS.items()}
        yield line("response_item", {**message, "role": "developer", MARKS: marks}, moment)
        return
    yield line("response_item", message, moment)
    text = "\n".join(part["text"] for part in content if "text" in part)
    if role == "user":
        shown = {"type": "user_message", "message": text, "images": [], "local_images": [], "text_elements": []}
    else:
        shown = {"type": "agent_message", "message": text}
    yield line("event_msg", shown, moment)
