"""opencode's parts and Clew's blocks: files by their data, tool calls with what they came to, and reasoning."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from clew.messages import File, Image, Json, Opaque, Text, Thinking, ToolCall, ToolResult
from clew.messages.dialects import Loss
from clew.messages.dialects.shared import is_link, words_for
from clew.providers.base import values

__all__ = ["data_url", "file_block", "output_text", "text", "thinking_block", "thinking_metadata", "tool_blocks"]

_KIND = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
CLEARED = "[Old tool result content cleared]"
"""What opencode tells the model in place of a result that it cleared to save room."""


def text(value: Any) -> str:
    """A text, or none in place of whatever else was there."""
    return value if isinstance(value, str) else ""


def file_block(part: dict[str, Any]) -> Image | File:
    """A file part, which has its bytes in a `data:` URL as a rule."""
    mime, name, url = text(part.get("mime")), text(part.get("filename")), text(part.get("url"))
    data = _data(url) if url.startswith("data:") else None
    link = url if data is None and url else None
    if mime.startswith("image/"):
        return Image(mime, data, link)
    return File(name, mime, data, link)


def _data(url: str) -> bytes | None:
    head, comma, body = url.partition(",")
    if not comma:
        return None
    try:
        return base64.b64decode(body) if head.endswith(";base64") else unquote_to_bytes(body)
    except (binascii.Error, ValueError):
        return None


def data_url(block: Image | File) -> str | None:
    """Where opencode finds such a file; None if it could not, or would not know it for what it is."""
    if not _KIND.fullmatch(block.media_type) or block.media_type.startswith("image/") != isinstance(block, Image):
        return None
    if block.data is not None:
        return f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"
    return block.url if is_link(block.url) else None


def thinking_block(part: dict[str, Any]) -> Thinking:
    """With its seal, under whichever vendor's name that is kept."""
    metadata = values(part.get("metadata"))
    said = [values(fields) for fields in metadata.values()]
    signature = next((text(fields.get("signature")) for fields in said if fields.get("signature")), None)
    sealed = (fields.get("redactedData") or fields.get("reasoningEncryptedContent") for fields in said)
    encrypted = next((text(seal) for seal in sealed if seal), None)
    item = text(values(metadata.get("openai")).get("itemId"))
    words = text(part.get("text"))
    plain = Thinking(words, signature, encrypted, {"openai-responses": {"id": item}} if item else None)
    return (
        plain if thinking_metadata(plain) == metadata else Thinking(words, signature, encrypted, {"opencode": metadata})
    )


def thinking_metadata(block: Thinking) -> dict[str, Any]:
    """What a reasoning part says beside its text. opencode gives it to the model that it is of, and to no other."""
    extra = values(block.extra)
    if own := values(extra.get("opencode")):
        return own
    found: dict[str, Any] = {}
    if block.signature:
        found["anthropic"] = {"signature": block.signature}
    if "openai-responses" in extra:
        item = text(values(extra["openai-responses"]).get("id"))
        seal = {"reasoningEncryptedContent": block.encrypted} if block.encrypted else {}
        found["openai"] = {"itemId": item, **seal} if item else seal
    elif block.encrypted:
        found["anthropic"] = {**found.get("anthropic", {}), "redactedData": block.encrypted}
    return found


def tool_blocks(part: dict[str, Any]) -> tuple[ToolCall, ToolResult | None]:
    """A tool part: the call, and what it came to if it has ended."""
    state = values(part.get("state"))
    call = ToolCall(text(part.get("callID")), text(part.get("tool")), state.get("input", {}))
    if state.get("status") == "completed":
        return call, ToolResult(call.id, _output(state))
    if state.get("status") == "error":
        metadata = values(state.get("metadata"))
        said = text(metadata.get("output")) if metadata.get("interrupted") is True else ""
        return call, ToolResult(call.id, (Text(said or text(state.get("error"))),), is_error=not said)
    return call, None


def _output(state: dict[str, Any]) -> tuple[Text | Json | Image | File | Opaque, ...]:
    if values(state.get("time")).get("compacted"):
        return (Text(CLEARED),)
    attachments = state.get("attachments")
    files = [file_block(values(part)) for part in attachments] if isinstance(attachments, list) else []
    output = text(state.get("output"))
    return (*((Text(output),) if output or not files else ()), *files)


def output_text(result: ToolResult, at: tuple[int, int], losses: list[Loss]) -> str:
    """What a result says in words. Files that opencode can hold are attached to it, but not to an error; words stand for
    the others."""
    words = []
    for block in result.content:
        if isinstance(block, Text):
            words.append(block.text)
        elif isinstance(block, Json):
            words.append(msgspec.json.encode(block.value).decode())
        elif isinstance(block, Opaque):
            losses.append(Loss(*at, "a part of a result", "opencode has no place for it"))
        elif result.is_error or data_url(block) is None:
            words.append(words_for(block))
            losses.append(Loss(*at, "a file of a result", "opencode has no place for it there"))
    return "\n".join(words)
