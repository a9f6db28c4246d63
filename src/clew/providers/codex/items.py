"""The items of a turn, as Codex prints them, in the words that all providers share."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable
from typing import Any

from clew.messages import Image, Json, Text, ToolCall, ToolResult
from clew.providers.base import values

__all__ = ["CALLS", "call_of", "result_of"]

Item = dict[str, Any]
Content = tuple[Text | Json | Image, ...]


def _command(item: Item) -> tuple[str, Any]:
    return "exec_command", {"cmd": _unwrapped(str(item.get("command", "")))}


def _unwrapped(command: str) -> str:
    """The model's own words: Codex prints them as an argument of the shell that it gives them to."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return words[2] if len(words) == 3 and words[1] in ("-lc", "-c") else command


def _patch(item: Item) -> tuple[str, Any]:
    return "apply_patch", {"changes": item.get("changes")}


def _mcp(item: Item) -> tuple[str, Any]:
    return f"mcp__{item.get('server')}__{item.get('tool')}", item.get("arguments")


def _search(item: Item) -> tuple[str, Any]:
    return "web_search", item.get("action") or {"query": item.get("query")}


def _plan(item: Item) -> tuple[str, Any]:
    """In the form that the model writes it in; Codex prints only whether a step is done."""
    items = item.get("items")
    steps = [values(step) for step in items] if isinstance(items, list) else []
    plan = [{"step": step.get("text"), "status": "completed" if step.get("completed") else "pending"} for step in steps]
    return "update_plan", {"plan": plan}


def _agents(item: Item) -> tuple[str, Any]:
    told = {"message": item.get("prompt"), "targets": item.get("receiver_thread_ids")}
    return str(item.get("tool")), {name: value for name, value in told.items() if value}


CALLS: dict[Any, Callable[[Item], tuple[str, Any]]] = {
    "command_execution": _command,
    "file_change": _patch,
    "mcp_tool_call": _mcp,
    "web_search": _search,
    "todo_list": _plan,
    "collab_tool_call": _agents,
}
"""The items that are calls of tools, by their type."""


def call_of(item: Item, call_id: str) -> ToolCall:
    name, arguments = CALLS[item["type"]](item)
    return ToolCall(call_id, name, arguments)


def result_of(item: Item, call_id: str) -> ToolResult:
    """What a call came to, in an item that is complete. One that Codex gives no end to, like a search, came to nothing
    that we are told."""
    failed = item.get("status") in ("failed", "declined")
    return ToolResult(call_id, _content(item), failed)


def _content(item: Item) -> Content:
    kind = item["type"]
    if kind == "command_execution":
        said, code = item.get("aggregated_output"), item.get("exit_code")
        ending = (Text(f"exit code {code}"),) if isinstance(code, int) and code else ()
        return (*_texts(said), *ending)
    if kind == "mcp_tool_call":
        return _mcp_content(item)
    if kind == "collab_tool_call" and item.get("agents_states"):
        return (Json(item["agents_states"]),)
    return _texts(item.get("status")) if kind == "file_change" else ()


def _texts(value: Any) -> tuple[Text, ...]:
    return (Text(value),) if isinstance(value, str) and value else ()


def _mcp_content(item: Item) -> Content:
    wrong = values(item.get("error")).get("message")
    result = values(item.get("result"))
    blocks = result.get("content")
    content = tuple(_mcp_block(block) for block in blocks) if isinstance(blocks, list) else ()
    if not content and result.get("structured_content") is not None:
        content = (Json(result["structured_content"]),)
    return (*content, *_texts(wrong))


def _mcp_block(block: Any) -> Text | Json | Image:
    fields = values(block)
    if fields.get("type") == "text" and isinstance(fields.get("text"), str):
        return Text(fields["text"])
    if fields.get("type") == "image":
        try:
            return Image(str(fields.get("mimeType", "")), base64.b64decode(str(fields.get("data", "")), validate=True))
        except ValueError:
            pass
    return Json(block)
