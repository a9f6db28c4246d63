"""Converts parts of opencode's messages to Clew's blocks and back: files, tool calls with their results, and reasoning.
A part is opencode's word for a piece of a message."""

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
from clew.providers.fields import text, values

__all__ = ["data_url", "file_block", "output_text", "thinking_block", "thinking_metadata", "tool_blocks"]

_KIND = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
CLEARED = "[Old tool result content cleared]"
"""The text that opencode sends to the model in place of a tool result that it has cleared to save room."""


def file_block(part: dict[str, Any]) -> Image | File:
    """Convert a file part of an opencode message (a piece of it that holds a file) to an image or a file block. The
    file's bytes are usually in a `data:` URL; any other URL becomes a link."""
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
    """Return the URL by which opencode can store this block: a `data:` URL with the block's bytes, or else its link.
    Returns None if the block has neither. Also returns None if the block's media type is malformed, is not `image/…`
    for an image, or is `image/…` for a file."""
    if not _KIND.fullmatch(block.media_type) or block.media_type.startswith("image/") != isinstance(block, Image):
        return None
    if block.data is not None:
        return f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"
    return block.url if is_link(block.url) else None


def thinking_block(part: dict[str, Any]) -> Thinking:
    """Convert a reasoning part of an opencode message (a piece of it that holds the model's thinking) to a thinking
    block. The signature or encrypted content of the thinking is found under whichever vendor's name opencode stored it.
    """
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
    """Return the metadata under which opencode stores a thinking block: its signature, encrypted content and id, by
    vendor. opencode sends them only to the model that the thinking came from."""
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
    """Convert a tool part of an opencode message (a piece of it that holds a tool call, and its result if there is one)
    to the call and its result. The result is None while the call has not ended."""
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
    """Return a tool result as the text that opencode stores. If the result is not an error, images and files that
    opencode can attach to it are left out, because the caller attaches them. All other images and files are described
    in words in the text, and blocks of an unknown kind are left out; for each of these, a loss is added to `losses`.
    `at` gives the index of the result's message and the index of the result in that message."""
    words = []
    for block in result.content:
        if isinstance(block, Text):
            words.append(block.text)
        elif isinstance(block, Json):
            words.append(msgspec.json.encode(block.value).decode())
        elif isinstance(block, Opaque):
            losses.append(Loss(*at, "a part of a result", "opencode cannot store it"))
        elif result.is_error or data_url(block) is None:
            words.append(words_for(block))
            losses.append(Loss(*at, "a file of a result", "opencode cannot store it there"))
    return "\n".join(words)
