"""From Clew's conversation to messages and parts of opencode, in a folder that its database takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from clew.messages import (
    Assistant,
    Block,
    File,
    Image,
    Json,
    Message,
    Opaque,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
    plain_text,
)  # fmt: skip
from clew.messages.dialects import Loss
from clew.messages.dialects.shared import words_for
from clew.providers._files import put_if_changed
from clew.providers.base import Conversation
from clew.providers.opencode.blocks import data_url, output_text, thinking_metadata
from clew.providers.opencode.folders import LARGE, Manifest, Sheet, save
from clew.providers.opencode.ids import Namer, checked, now
from clew.providers.opencode.rows import Row, encode, opened

__all__ = ["VERSION", "session_row", "write"]

VERSION = "1.18.33"
"""The opencode whose form is written."""
_AGENT = "build"
_QUIET = [{"permission": name, "pattern": "*", "action": "deny"} for name in ("question", "plan_enter", "plan_exit")]
"""What asks somebody who is not there: `opencode run` denies it in its sessions too."""
_NO_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
_ABORTED = "Tool execution aborted"
"""What opencode itself says of a call that it did not see the end of."""


def session_row(key: str, title: str, created: int, updated: int) -> Row:
    """A session without its place."""
    return {
        "id": key,
        "project_id": "global",
        "parent_id": None,
        "slug": f"clew-{key[-8:].lower()}",
        "directory": "/",
        "title": title,
        "version": VERSION,
        "permission": msgspec.json.encode(_QUIET).decode(),
        "time_created": created,
        "time_updated": updated,
    }


def write(conversation: Conversation, key: str, folder: Path) -> tuple[Loss, ...]:
    """The same conversation and key give the same folder."""
    writer = _Writer(conversation, checked(key))
    for at, message in enumerate(conversation.messages):
        writer.add(at, message)
    writer.save(folder)
    return tuple(writer.losses)


class _Writer:
    def __init__(self, conversation: Conversation, key: str) -> None:
        self.losses: list[Loss] = []
        self._conversation = conversation
        self._key = key
        latest = conversation.updated_at or conversation.created_at
        self._namer = Namer(key, int(latest.timestamp() * 1000) if latest else now())
        self._rows: list[tuple[str, Row]] = []
        self._prompt = ""
        """The message that responses answer."""

    def add(self, at: int, message: Message) -> None:
        for index, block in enumerate(message.content):
            if _says_more(block):
                self.losses.append(
                    Loss(at, index, "what a vendor said beside the block", "opencode has no place for it")
                )
        if isinstance(message, User):
            self._add_prompt(at, message.content)
        elif isinstance(message, System):
            self.losses.append(
                Loss(at, None, "instructions inside the conversation", "they are told as the user's words")
            )
            self._add_prompt(at, message.content)
        elif isinstance(message, Assistant):
            self._add_response(at, message, self._results(at))
        elif isinstance(message, Tool):
            asked = self._asked_before(at)
            for index, block in enumerate(message.content):
                if not isinstance(block, ToolResult) or block.call_id not in asked:
                    self.losses.append(
                        Loss(at, index, "a result", "opencode keeps results with their calls, and it has none")
                    )

    def save(self, folder: Path) -> None:
        created = self._conversation.created_at
        row = session_row(
            self._key, self._title(), int(created.timestamp() * 1000) if created else self._namer.time, self._namer.time
        )
        row["directory"] = self._conversation.cwd or "/"
        number, held = 0, bytearray()
        for place, (table, each) in enumerate(self._rows):
            held += encode(table, each)
            last = place + 1 == len(self._rows)
            if last or (len(held) >= LARGE and self._rows[place + 1][0] == "message"):
                put_if_changed(folder / self._key / f"{number:06d}.jsonl", bytes(held))
                number, held = number + 1, bytearray()
        parts = sum(table == "part" for table, _ in self._rows)
        updated = max((each["time_updated"] for _, each in self._rows), default=0)
        sheet = Sheet(self._key, len(self._rows) - parts, parts, updated, number, {"session": [opened(row)]})
        save(folder, Manifest(self._key, [sheet]))

    def _title(self) -> str:
        if self._conversation.title:
            return self._conversation.title
        first = next((plain_text(each) for each in self._conversation.messages if isinstance(each, User)), "")
        return " ".join(first.split())[:50] or "A conversation"

    def _add_prompt(self, at: int, content: Sequence[Block]) -> None:
        """Without a model, which would have to be one that opencode has here: so it takes what it is told, or its own."""
        self._prompt = self._message({"role": "user", "time": {"created": self._namer.time}, "agent": _AGENT})
        for index, block in enumerate(content):
            self._part(self._prompt, self._user_part((at, index), block))

    def _user_part(self, at: tuple[int, int], block: Block) -> dict[str, Any]:
        if isinstance(block, Text):
            return {"type": "text", "text": block.text}
        if isinstance(block, Json):
            return {"type": "text", "text": msgspec.json.encode(block.value).decode()}
        if isinstance(block, (Image, File)):
            return self._file_part(at, block)
        self.losses.append(Loss(*at, "a block of a prompt", "opencode has no place for it there"))
        return {"type": "text", "text": "", "ignored": True}

    def _file_part(self, at: tuple[int, int], block: Image | File) -> dict[str, Any]:
        if isinstance(block, File) and block.data is not None and block.media_type.startswith("text/"):
            self.losses.append(
                Loss(*at, "a text file", "opencode shows a model texts as words: it is told as the user's")
            )
            name = f"{block.name}:\n" if block.name else ""
            return {"type": "text", "text": name + block.data.decode(errors="replace")}
        url = data_url(block)
        if url is None:
            self.losses.append(Loss(*at, "a file", "opencode keeps files by their data or link, with their kind"))
            return {"type": "text", "text": words_for(block)}
        return _file(block)

    def _results(self, at: int) -> dict[str, ToolResult]:
        """What the calls of this response came to: all results up to the next one."""
        found: dict[str, ToolResult] = {}
        for place in range(at + 1, len(self._conversation.messages)):
            message = self._conversation.messages[place]
            if isinstance(message, Assistant):
                break
            if isinstance(message, Tool):
                found.update({each.call_id: each for each in message.content if isinstance(each, ToolResult)})
        return found

    def _asked_before(self, at: int) -> set[str]:
        for place in range(at - 1, -1, -1):
            message = self._conversation.messages[place]
            if isinstance(message, Assistant):
                return {block.id for block in message.content if isinstance(block, ToolCall)}
        return set()

    def _add_response(self, at: int, message: Assistant, results: dict[str, ToolResult]) -> None:
        if not self._prompt:
            self._add_prompt(at, ())
        asks = any(isinstance(block, ToolCall) for block in message.content)
        reason = "tool-calls" if asks else "stop"
        provider, model = _model(message.model or self._conversation.model)
        cwd = self._conversation.cwd or "/"
        began = self._namer.time
        name = self._message(
            {
                "role": "assistant", "parentID": self._prompt, "mode": _AGENT, "agent": _AGENT,
                "path": {"cwd": cwd, "root": cwd}, "cost": 0, "tokens": _NO_TOKENS, "modelID": model,
                "providerID": provider, "time": {"created": began, "completed": began}, "finish": reason,
            }
        )  # fmt: skip
        self._part(name, {"type": "step-start"})
        for index, block in enumerate(message.content):
            if isinstance(block, Text):
                self._part(name, {"type": "text", "text": block.text, "time": {"start": began, "end": began}})
            elif isinstance(block, Thinking):
                self._add_thinking(name, block, began)
            elif isinstance(block, ToolCall):
                self._add_call(name, (at, index), block, results.get(block.id))
            else:
                self.losses.append(Loss(at, index, "a block of a response", "opencode has no place for it there"))
        self._part(name, {"type": "step-finish", "reason": reason, "tokens": _NO_TOKENS, "cost": 0})

    def _add_thinking(self, name: str, block: Thinking, began: int) -> None:
        part = {"type": "reasoning", "text": block.text, "time": {"start": began, "end": began}}
        metadata = thinking_metadata(block)
        self._part(name, {**part, "metadata": metadata} if metadata else part)

    def _add_call(self, name: str, at: tuple[int, int], call: ToolCall, result: ToolResult | None) -> None:
        arguments = call.arguments
        if not isinstance(arguments, dict):
            arguments = {"input": arguments}
            self.losses.append(
                Loss(*at, "arguments of a call", "opencode takes none but objects: they are in a field now")
            )
        time = {"start": self._namer.time, "end": self._namer.time}
        state: dict[str, Any] = {"status": "error", "input": arguments, "error": _ABORTED, "time": time}
        if result is None:
            state["metadata"] = {"interrupted": True}
        elif result.is_error:
            state["error"] = output_text(result, at, self.losses) or "error"
        else:
            output = output_text(result, at, self.losses)
            state = {"status": "completed", "input": arguments, "output": output, "title": call.name, "time": time}
            state["metadata"] = {}
            files = [each for each in result.content if isinstance(each, (Image, File)) and data_url(each)]
            if files:
                state["attachments"] = [self._attachment(name, each) for each in files]
        call_id = call.id or self._namer.next("call")
        self._part(name, {"type": "tool", "tool": call.name, "callID": call_id, "state": state})

    def _attachment(self, message: str, block: Image | File) -> dict[str, Any]:
        names = {"id": self._namer.next("prt"), "sessionID": self._key, "messageID": message}
        return {**names, **_file(block)}

    def _message(self, info: dict[str, Any]) -> str:
        name = self._namer.next("msg")
        self._add_row("message", {"id": name, "session_id": self._key}, info)
        return name

    def _part(self, message: str, data: dict[str, Any]) -> None:
        name = self._namer.next("prt")
        self._add_row("part", {"id": name, "message_id": message, "session_id": self._key}, data)

    def _add_row(self, table: str, names: Row, data: dict[str, Any]) -> None:
        times = {"time_created": self._namer.time, "time_updated": self._namer.time}
        self._rows.append((table, {**names, **times, "data": msgspec.json.encode(data).decode()}))


def _says_more(block: Block) -> bool:
    """Whether a vendor's words beside a block are lost. Of thinking, opencode keeps its own and what seals it."""
    extra = None if isinstance(block, Opaque) else block.extra
    return bool(extra) and not (isinstance(block, Thinking) and set(extra or ()) <= {"opencode", "openai-responses"})


def _file(block: Image | File) -> dict[str, Any]:
    name = {"filename": block.name} if isinstance(block, File) and block.name else {}
    return {"type": "file", "mime": block.media_type, **name, "url": data_url(block)}


def _model(name: str) -> tuple[str, str]:
    """opencode's provider and model for a name from anywhere: so a model's own reasoning is given back to it."""
    provider, _, model = name.partition("/")
    if provider and model:
        return provider, model
    if name.startswith("claude"):
        return "anthropic", name
    return ("openai", name) if name.startswith(("gpt", "o1", "o3", "o4", "codex")) else ("unknown", name or "unknown")
