"""Render a thread as Markdown for people and as JSON for other programs. Neither can be imported again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from clew.log import Call, Checkpoint
from clew.messages import Block, File, Image, Json, Message, Opaque, Text, Thinking, ToolCall, ToolResult
from clew.threads.inbox import Post

__all__ = ["plain_object", "posts_object", "to_json", "to_markdown"]

JSON_FORMAT = 1


def to_markdown(checkpoint: Checkpoint, *, thread_id: str = "", history: bool = False) -> str:
    """Return the conversation as Markdown: messages, tool calls with their results, and usage and cost.

    `thread_id` is shown with the rest if given, because a checkpoint does not hold it. `history=True` also shows, where
    they occurred, messages that the model no longer sees because a rewind took them back or a summary replaced them.
    Images and files are shown by type and size. Text of the conversation cannot change the layout around it: code
    fences around it are longer than any in it, and a fence or HTML block that it leaves open is closed at its end.
    """
    parts = [f"# {_inline(checkpoint.title or thread_id or 'Untitled')}", _facts(checkpoint, thread_id)]
    if checkpoint.system_prompt:
        parts += ["## System prompt", _fenced(checkpoint.system_prompt)]
    names: dict[str, str] = {}
    for number, (message, current) in enumerate(_messages(checkpoint, history), 1):
        names |= {block.id: block.name for block in message.content if isinstance(block, ToolCall)}
        parts.append(_heading(number, message, current))
        parts += [_block(block, names) for block in message.content] or ["*(empty)*"]
    if checkpoint.calls:
        parts.append("## Open calls")
        for call in checkpoint.calls:
            parts.append(f"- {_code(call.call.name)}: {call.status.replace('_', ' ')}")
            if call.result is not None:
                parts.append(_block(call.result, names))
    if checkpoint.state:
        parts += ["## State", _fenced(_pretty(checkpoint.state), "json")]
    return "\n\n".join(parts) + "\n"


def to_json(checkpoint: Checkpoint, *, thread_id: str = "", history: bool = False) -> str:
    """Return the thread's conversation and state as indented JSON. Bytes are base64.

    docs/moving.md lists the keys, which are always present. A checkpoint does not hold the thread's id, so give it as
    `thread_id`; `history=True` adds every message ever recorded under the key "history". The ids by which outside
    agents know the conversation are left out: they are as good as secrets.
    """
    usage = msgspec.structs.asdict(checkpoint.usage)
    document: dict[str, Any] = {
        "format": JSON_FORMAT,
        "thread_id": thread_id,
        "title": checkpoint.title,
        "status": checkpoint.status,
        "reason": checkpoint.reason,
        "agent": checkpoint.agent,
        "model": checkpoint.model,
        "parent": dict(zip(("thread_id", "turn"), checkpoint.parent, strict=True)) if checkpoint.parent else None,
        "tags": checkpoint.tags,
        "turns": checkpoint.turns,
        "usage": usage,
        "cost_usd": checkpoint.cost_usd,
        "unaccounted": checkpoint.unaccounted,
        "system_prompt": checkpoint.system_prompt,
        "tools": checkpoint.tools,
        "limits": checkpoint.limits,
        "state": checkpoint.state,
        "workspace": msgspec.structs.asdict(checkpoint.workspace) if checkpoint.workspace else None,
        "files_turn": checkpoint.files_turn if checkpoint.workspace else None,
        "messages": [_message_object(message) for message, _ in _messages(checkpoint, False)],
        "open_calls": [_call_object(call) for call in checkpoint.calls],
    }
    if history:
        document["history"] = [
            {**_message_object(message), "current": current} for message, current in _messages(checkpoint, True)
        ]
    return _pretty(document)


def _messages(checkpoint: Checkpoint, history: bool) -> Iterator[tuple[Message, bool]]:
    """Yield the messages to show, each with True if the model currently sees it, else False.

    Without `history`, only messages that the model sees are shown. With `history`, all messages ever recorded are.
    """
    if not history:
        yield from ((message, True) for message in checkpoint.messages)
        return
    seen = {place for start, stop in checkpoint.view for place in range(start, stop)}
    yield from ((message, place in seen) for place, message in enumerate(checkpoint.history))


def _facts(checkpoint: Checkpoint, thread_id: str) -> str:
    usage = checkpoint.usage
    parent = checkpoint.parent
    tokens = f"{usage.input_tokens:,} in, {usage.output_tokens:,} out"
    lost = f", and {checkpoint.unaccounted} lost model call(s)" if checkpoint.unaccounted else ""
    rows = {
        "Thread": _code(thread_id) if thread_id else "",
        "Status": checkpoint.status + (f": {_inline(checkpoint.reason)}" if checkpoint.reason else ""),
        "Agent": _inline(checkpoint.agent),
        "Model": _inline(checkpoint.model),
        "Turns": str(checkpoint.turns),
        "Tokens": tokens,
        "Cost": ("unknown" if checkpoint.cost_usd is None else f"${checkpoint.cost_usd:,.4f}") + lost,
        "Forked from": f"{_code(parent[0])}, turn {parent[1]}" if parent else "",
        "Tags": ", ".join(_inline(f"{name}={value}") for name, value in checkpoint.tags.items()),
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items() if value]
    return "\n".join(["| | |", "|---|---|", *lines])


_ROLES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tools"}


def _heading(number: int, message: Message, current: bool) -> str:
    role = _ROLES[str(message.__struct_config__.tag)]
    return f"## {number} · {role}{'' if current else ' (no longer part of the conversation)'}"


def _block(block: Any, names: dict[str, str]) -> str:
    if isinstance(block, Text):
        return _contained(block.text) or "*(empty)*"
    if isinstance(block, Thinking):
        text = block.text or "(not shown by the vendor)"
        return "\n".join(f"> {line}".rstrip() for line in ["**Thinking**", "", *_contained(text).split("\n")])
    if isinstance(block, ToolCall):
        given = block.arguments
        body = _fenced(given) if isinstance(given, str) else _fenced(_pretty(given), "json")
        return f"**Call** {_code(block.name)}\n\n{body}"
    if isinstance(block, ToolResult):
        name = _code(names.get(block.call_id) or block.call_id)
        parts = [_fenced(part.text) if isinstance(part, Text) else _block(part, names) for part in block.content]
        return "\n\n".join([f"**{'Error' if block.is_error else 'Result'}** of {name}", *(parts or ["*(empty)*"])])
    if isinstance(block, Json):
        return _fenced(_pretty(block.value), "json")
    if isinstance(block, Image):
        return f"*[Image: {_attachment(block)}]*"
    if isinstance(block, File):
        return f"*[File: {', '.join(part for part in (_inline(block.name), _attachment(block)) if part)}]*"
    assert isinstance(block, Opaque)  # noqa: S101 - no other kind is left
    return f"*[Something of {_inline(block.dialect)} that this version does not know]*"


def _attachment(block: Image | File) -> str:
    """Return a text for an image or file: its type, its size, and its URL or id, as far as they are known."""
    size = _size(len(block.data)) if block.data is not None else ""
    where = _code(block.url) if block.url else f"id {_code(block.file_id)}" if block.file_id else ""
    return ", ".join(part for part in (_inline(block.media_type), size, where) if part) or "empty"


def _size(count: int) -> str:
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} byte{'' if count == 1 else 's'}"


def _inline(text: str) -> str:
    """Return text on one line with all Markdown characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&!])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """Return the text as a Markdown code span, with more backticks around it than there are in it.

    Replaces pipes, which would end a table cell.
    """
    text = " ".join(text.split()).replace("|", "¦")
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _fenced(text: str, language: str = "") -> str:
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


def _contained(text: str) -> str:
    """Return Markdown text changed so that it cannot alter the layout of the page around it.

    HTML blocks are escaped, a code fence left open is closed, and headings are moved below those of the page.
    """
    lines: list[str] = []
    fence = ""
    for line in text.strip("\n").replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        found = _FENCE.match(line)
        if found and not fence and not (found[1][0] == "`" and "`" in found[2]):
            fence = found[1]
        elif found and fence and found[1].startswith(fence) and not found[2].strip():
            fence = ""
        lines.append(line if fence else _below(line))
    if fence:
        lines.append(fence)
    return "\n".join(lines).strip("\n")


def _below(line: str) -> str:
    line = re.sub(r"^(\s*)<(?=[!?/a-zA-Z])(?!https?://)", r"\1\\<", line)
    return re.sub(r"^( {0,3})(#{1,6})(?=\s|$)", lambda found: found[1] + "#" * min(6, len(found[2]) + 2), line)


def _message_object(message: Message) -> dict[str, Any]:
    fields = msgspec.structs.asdict(message)
    fields["content"] = [_block_object(block) for block in message.content]
    return {"role": message.__struct_config__.tag, **fields}


def plain_object(value: Any) -> Any:
    """Convert any value of a log to plain values that JSON can hold. Structs become dictionaries of their fields; a
    message gets its `role` in addition, and a block of a message its `type`."""
    if isinstance(value, Message):
        return _with_text_keys(_message_object(value))
    if isinstance(value, Block):
        return _with_text_keys(_block_object(value))
    if isinstance(value, msgspec.Struct):
        return {name: plain_object(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [plain_object(item) for item in value]
    return _with_text_keys(value)


def posts_object(posts: Sequence[Post]) -> list[dict[str, Any]]:
    """Convert posts of a thread's inbox to plain values that JSON can hold."""
    return [
        {"prompt": post.prompt, "prompt_id": post.prompt_id, "answer": plain_object(post.answer), "at": post.at}
        for post in posts
    ]


def _block_object(block: Any) -> dict[str, Any]:
    fields = msgspec.structs.asdict(block)
    if isinstance(block, ToolResult):
        fields["content"] = [_block_object(part) for part in block.content]
    return {"type": block.__struct_config__.tag, **fields}


def _call_object(call: Call) -> dict[str, Any]:
    return {"status": call.status, "attempt": call.attempt, "call": _block_object(call.call)}


def _pretty(value: Any) -> str:
    """Return indented JSON of any value that a log can hold. Keys that are not text become text."""
    return msgspec.json.format(msgspec.json.encode(_with_text_keys(value), enc_hook=repr), indent=2).decode()


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list | tuple) else value
