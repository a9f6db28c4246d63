"""The result of an MCP server's tool, in Clew's blocks."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from clew.messages import File, Image, Json, Text, ToolResult

__all__ = ["read_result"]


def read_result(result: dict[str, Any]) -> ToolResult:
    """Structured content is taken only where there is no other: servers repeat it as text."""
    content = tuple(_block(block) for block in result.get("content") or ())
    if not content and result.get("structuredContent") is not None:
        content = (Json(result["structuredContent"]),)
    return ToolResult("", content or (Text("done"),), is_error=bool(result.get("isError")))


def _block(block: dict[str, Any]) -> Text | Json | Image | File:
    kind, media_type = block.get("type"), str(block.get("mimeType") or "")
    if kind == "text":
        return Text(str(block.get("text", "")))
    if kind in ("image", "audio") and (data := _bytes(block.get("data"))) is not None:
        return Image(media_type, data) if kind == "image" else File("", media_type, data)
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        name, media_type = str(resource.get("uri", "")), str(resource.get("mimeType") or "")
        if isinstance(resource.get("text"), str):
            return Text(resource["text"], {"uri": name})
        if (data := _bytes(resource.get("blob"))) is not None:
            return File(name, media_type, data)
    if kind == "resource_link":
        said = " ".join(str(block[key]) for key in ("title", "name", "description") if block.get(key))
        return Text(f"{block.get('uri', '')} {said}".strip())
    return Json(block)


def _bytes(text: Any) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return None
