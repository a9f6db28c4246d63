"""Converts a rollout, the file in which Codex keeps one conversation, to a `Conversation` and back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from clew.errors import Corrupt, InvalidInput
from clew.messages import Assistant, Block, File, Image, Message, Text, Thinking, ToolResult
from clew.messages.dialects import Loss, from_dialect, losses, to_dialect
from clew.providers.base import Conversation
from clew.providers.codex.rollout import (
    MARKS,
    SEEN_VERSION,
    USER_MARKS,
    Record,
    born_at,
    checked,
    contents,
    is_prompt,
    line,
    meta_line,
    meta_of,
    records,
    said_parts,
    text_of,
    title_of,
    whole,
)
from clew.providers.codex.storage import ROLLOUT
from clew.providers.fields import parse_time, values
from clew.providers.files import put

__all__ = ["read", "write"]


_UNNAMED = "unnamed_reasoning"
"""A placeholder id for reasoning that has none, because older versions of Codex wrote none. The dialect in which the
reasoning is converted requires an id."""


def read(path: Path) -> Conversation:
    """Read a rollout, Codex's file of one conversation, as what the model would get if the conversation continued now.
    After a compaction that is the summary and what followed it. Exchanges that the user rolled back are left out.
    Raises `Corrupt` if the file cannot be read."""
    meta = meta_of(path)
    history = _History()
    for record in records(whole(contents(path)), path):
        history.take(record)
    items = [item for raw in history.items for item in _plain(raw)]
    try:
        messages = from_dialect(items, "openai-responses")
    except InvalidInput as error:
        raise Corrupt(f"{path}: {error}") from error
    first = next((item for item in history.items if is_prompt(item)), None)
    return Conversation(
        messages=tuple(_without_names(message) for message in messages),
        cwd=history.cwd or str(meta.get("cwd") or ""),
        title=title_of(text_of(first)) if first else "",
        model=history.model,
        created_at=parse_time(meta.get("timestamp")),
        updated_at=history.updated_at,
    )


class _History:
    """Collects what the model would get if the conversation continued: messages, tool calls and results, here called
    items. They are read from the records of a rollout (Codex's file of one conversation) one by one. Also notes the
    working folder, the model and the time of the last record."""

    def __init__(self) -> None:
        self.items: list[Record] = []
        self.cwd = ""
        self.model = ""
        self.updated_at: datetime | None = None

    def take(self, record: Record) -> None:
        kind, payload = record.get("type"), values(record.get("payload"))
        self.updated_at = parse_time(record.get("timestamp")) or self.updated_at
        if kind == "response_item":
            self.items.append(payload)
        elif kind == "turn_context":
            self.cwd, self.model = str(payload.get("cwd") or self.cwd), str(payload.get("model") or self.model)
        elif kind == "compacted":
            self._compact(payload)
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            self._roll_back(payload.get("num_turns"))

    def _compact(self, payload: Record) -> None:
        """Replace the items collected so far by the shorter history that a compaction recorded in `payload`. Older
        versions of Codex record only a summary: then the prompts stay, and the summary replaces everything else."""
        replaced = payload.get("replacement_history")
        if isinstance(replaced, list):
            self.items = [item for item in replaced if isinstance(item, dict)]
            return
        summary = {"type": "message", "role": "user", "content": str(payload.get("message", ""))}
        self.items = [*(item for item in self.items if is_prompt(item)), summary]

    def _roll_back(self, turns: Any) -> None:
        prompts = [at for at, item in enumerate(self.items) if is_prompt(item)]
        if isinstance(turns, int) and turns > 0 and prompts:
            del self.items[prompts[-min(turns, len(prompts))] :]


def _plain(item: Record) -> Iterator[Record]:
    """Convert one item of a rollout (Codex's file of one conversation), such as a message or a tool call, to items of
    OpenAI's Responses API. Yields nothing for an item that the program added for its own use.

    Ids that have a meaning only in this conversation are left out. Special calls, such as a web search, become an
    ordinary call and its output.
    """
    kind = item.get("type")
    if kind == "message":
        parts = said_parts(item)
        if parts:
            role = "system" if item.get("role") == "developer" else item.get("role")
            yield {"type": "message", "role": role, "content": parts}
    elif kind in ("function_call", "custom_tool_call"):
        fields: Record = {name: item[name] for name in ("arguments", "input") if name in item}
        yield {"type": kind, "call_id": item.get("call_id"), "name": _name(item), **fields}
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output")
        said = output.get("content") if isinstance(output, dict) else output
        yield {"type": kind, "call_id": item.get("call_id"), "output": "" if said is None else said}
    elif kind == "reasoning":
        yield _reasoning(item)
    elif kind == "local_shell_call":
        yield _call(item.get("call_id") or item.get("id"), "local_shell", item.get("action"))
    elif kind == "web_search_call":
        yield _call(item.get("id") or "web_search", "web_search", item.get("action"))
        yield _output(item.get("id") or "web_search", "")
    elif kind == "image_generation_call":
        yield _call(item.get("id") or "image", "image_generation", {"prompt": item.get("revised_prompt")})
        picture = {"type": "input_image", "image_url": f"data:image/png;base64,{item.get('result') or ''}"}
        yield _output(item.get("id") or "image", [picture] if item.get("result") else "")
    elif isinstance(kind, str) and kind not in ("ghost_snapshot", "other"):
        yield {name: value for name, value in item.items() if name != MARKS}


def _name(item: Record) -> Any:
    """Return the name of the tool that `item`, a tool call in a rollout (Codex's file of one conversation), calls. The
    name of an MCP tool gets its server before it, as in `mcp__server__tool`."""
    name, space = item.get("name"), item.get("namespace")
    return f"{space}__{name}" if isinstance(space, str) and space.startswith("mcp__") else name


def _reasoning(item: Record) -> Record:
    summary = item.get("summary") or item.get("content") or []
    texts = [values(part).get("text") for part in summary] if isinstance(summary, list) else []
    parts = [{"type": "summary_text", "text": text} for text in texts if isinstance(text, str) and text]
    name = item.get("id") or _UNNAMED
    return {"type": "reasoning", "id": name, "summary": parts, "encrypted_content": item.get("encrypted_content")}


def _call(call_id: Any, name: str, arguments: Any) -> Record:
    text = msgspec.json.encode(values(arguments)).decode()
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}


def _output(call_id: Any, output: Any) -> Record:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _without_names(message: Message) -> Message:
    """Return the message without the placeholder ids of its reasoning blocks. Reasoning that Codex recorded without an
    id gets a placeholder while it is converted, because the Responses dialect requires an id."""
    if not isinstance(message, Assistant):
        return message
    blocks = tuple(
        msgspec.structs.replace(block, extra=None) if isinstance(block, Thinking) and _is_unnamed(block) else block
        for block in message.content
    )
    return msgspec.structs.replace(message, content=blocks)


def _is_unnamed(block: Thinking) -> bool:
    fields = values((block.extra or {}).get("openai-responses"))
    return bool(fields.get("id") == _UNNAMED)


def write(conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
    """Write the conversation as a rollout, Codex's file of one conversation, into a folder from which it can be
    installed. Returns what such a file cannot hold of the conversation. If the conversation has dates, the same
    conversation and key give the same bytes.

    Codex silently skips a record that it cannot read, so only forms that it knows are written. Raises `InvalidInput` if
    the key is not a session id of Codex.
    """
    born = born_at(checked(key))
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
    """Return the message in a form that Codex can store. Documents are replaced by a description in words, and so are
    pictures of which the message has neither the data nor a link. A loss is added to `lost` for each of them. `at` is
    the index of the message."""
    blocks = tuple(_fitting_block(block, at, index, lost) for index, block in enumerate(message.content))
    return message if blocks == message.content else msgspec.structs.replace(message, content=blocks)


def _fitting_block(block: Block, at: int, index: int, lost: list[Loss]) -> Block:
    if isinstance(block, ToolResult):
        content: Any = tuple(_fitting_block(inner, at, index, lost) for inner in block.content)
        return block if content == block.content else msgspec.structs.replace(block, content=content)
    if isinstance(block, File) or (isinstance(block, Image) and block.data is None and block.url is None):
        lost.append(
            Loss(at, index, "a document, or a picture without data", "Codex cannot store it; words are sent instead")
        )
        return Text(_words(block))
    return block


def _words(block: File | Image) -> str:
    kind = "file" if isinstance(block, File) else "image"
    named = [part for part in (getattr(block, "name", ""), block.media_type, block.url, block.file_id) if part]
    return f"[{kind}: {', '.join(named)}]" if named else f"[{kind}]"


def _lines(item: Record, moment: datetime) -> Iterator[bytes]:
    """Yield the lines that a rollout (Codex's file of one conversation) gets for one item of OpenAI's Responses API.
    The first line is for the model. A message of the user or the model gets another line, which Codex shows to users.
    `moment` is the time that the lines name."""
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
