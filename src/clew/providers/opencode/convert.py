"""Converts opencode's messages to a `Conversation`, as its model would get them, and back. In opencode a message
consists of parts: texts, reasoning, files, tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clew.errors import Corrupt
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
from clew.providers.base import Conversation
from clew.providers.fields import from_milliseconds, text, values
from clew.providers.files import put_if_changed
from clew.providers.opencode.blocks import (
    data_url,
    file_block,
    output_text,
    thinking_block,
    thinking_metadata,
    tool_blocks,
)
from clew.providers.opencode.database import Namer, Row, checked, encode, now, opened
from clew.providers.opencode.storage import LARGE, Manifest, Sheet, load, manifest_rows, rows_of, save

__all__ = ["VERSION", "Stored", "messages_of", "model_name", "read", "session_row", "stored", "write"]


_NOT_SENT = frozenset({"text/plain", "application/x-directory"})
"""Media types of files that are not sent to the model as files, because opencode puts their content into a text part.
"""


class Stored(msgspec.Struct, frozen=True):
    """A message of opencode with its parts (pieces such as a text or a tool call), decoded from the database or an
    export folder. `created` is the time of the message in milliseconds since 1970. `info` has all other fields of the
    message, such as its role."""

    id: str
    created: int
    info: dict[str, Any]
    parts: tuple[dict[str, Any], ...]

    @property
    def role(self) -> str:
        return text(self.info.get("role"))

    def part(self, kind: str) -> dict[str, Any] | None:
        return next((part for part in self.parts if part.get("type") == kind), None)


def stored(message: Row, parts: Iterable[Row]) -> Stored:
    """Return a message of opencode with its parts (pieces such as a text or a tool call), decoded from their database
    rows. Raises `Corrupt` if a row does not hold a JSON object."""
    read = tuple({**_data(part), "id": part["id"]} for part in parts)
    return Stored(message["id"], message["time_created"], _data(message), read)


def read(folder: Path) -> Conversation:
    """Read the conversation in an export folder, Clew's copy of it, as opencode would continue it: without messages
    that the user reverted, and with opencode's summaries in place of the messages that they replace. Raises `Corrupt`
    if the folder is damaged."""
    manifest = load(folder)
    sheet = manifest.sessions[0]
    session = next(row for table, row in manifest_rows(sheet) if table == "session")
    pending: list[tuple[Row, list[Row]]] = []
    for table, row in rows_of(folder, sheet):
        if table == "message":
            pending.append((row, []))
        elif pending:
            pending[-1][1].append(row)
    everything = [stored(message, parts) for message, parts in pending]
    current, losses = _current(everything, _json(session.get("revert")))
    return Conversation(
        messages=messages_of(current),
        cwd=text(session.get("directory")),
        title=text(session.get("title")),
        model=_model(session, everything),
        created_at=from_milliseconds(session.get("time_created")),
        updated_at=from_milliseconds(session.get("time_updated")),
        losses=losses,
    )


def messages_of(messages: Sequence[Stored]) -> tuple[Message, ...]:
    """Convert messages of opencode to Clew's. A response consists of steps, each a call of the model: each step becomes
    one message, and its tool results another after it."""
    found: list[Message] = []
    for message in messages:
        if message.role == "user":
            found += _prompt(message)
        elif message.role == "assistant":
            found += _response(message)
    return tuple(found)


def model_name(info: dict[str, Any]) -> str:
    """Return a model's name as opencode's command line takes it, `provider/model`, from the fields of a message or
    session."""
    provider, model = text(info.get("providerID")), text(info.get("modelID") or info.get("id"))
    return f"{provider}/{model}" if provider and model else model


def _current(messages: list[Stored], revert: dict[str, Any]) -> tuple[list[Stored], tuple[Loss, ...]]:
    """Return the messages that opencode would continue from, and what is lost of the conversation. Messages that the
    user reverted are left out; `revert` names the first of them. If opencode has summarised earlier messages, the
    summary stands in their place, and a loss says how many messages it replaces."""
    messages = _before(messages, revert)
    at = _compaction(messages)
    if at is None:
        return messages, ()
    asked = messages[at]
    answer = next(number for number, message in enumerate(messages) if number > at and _sums_up(message, asked))
    kept = messages[_place(messages[:at], values(asked.part("compaction")).get("tail_start_id")) : at]
    loss = Loss(0, None, f"{at - len(kept)} earlier messages", "opencode replaced them by its summary")
    return [*messages[at : answer + 1], *kept, *messages[answer + 1 :]], (loss,)


def _before(messages: list[Stored], revert: dict[str, Any]) -> list[Stored]:
    """Return the messages before the point to which the user reverted. `revert` names that point: a message, or a part
    of a message, such as a text or a tool call. If it names a part, the message is kept with only its earlier parts. If
    `revert` names no message, all messages are returned."""
    at = _place(messages, revert.get("messageID"))
    since = revert.get("partID")
    if at == len(messages) or not since:
        return messages[:at]
    names = [part["id"] for part in messages[at].parts]
    left = messages[at].parts[: names.index(since) if since in names else 0]
    return [*messages[:at], msgspec.structs.replace(messages[at], parts=left)]


def _place(messages: list[Stored], name: Any) -> int:
    """Return the index of the message with the id `name`. If no message has it, return the number of messages in the
    list."""
    return next((at for at, message in enumerate(messages) if message.id == name), len(messages))


def _compaction(messages: list[Stored]) -> int | None:
    """Return the index of the last message that asked opencode to summarise the conversation, and that got a summary as
    its answer; None if there is no such message."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].part("compaction") and any(_sums_up(later, messages[at]) for later in messages[at + 1 :]):
            return at
    return None


def _sums_up(message: Stored, asked: Stored) -> bool:
    info = message.info
    return (
        bool(info.get("summary") and info.get("finish") and not info.get("error")) and info.get("parentID") == asked.id
    )


def _prompt(message: Stored) -> list[Message]:
    """Convert a user message of opencode to a list with one message of Clew. The list is empty if nothing of the
    message is to be kept. A text that opencode added by itself is kept only if the message has files, because then it
    is the content of a file."""
    has_files = message.part("file") is not None
    blocks: list[Block] = []
    for part in message.parts:
        kind = part.get("type")
        if kind == "text" and not part.get("ignored") and (has_files or not part.get("synthetic")):
            blocks.append(Text(text(part.get("text"))))
        elif kind == "file" and part.get("mime") not in _NOT_SENT:
            blocks.append(file_block(part))
        elif kind == "compaction":
            blocks.append(Text("What did we do so far?"))
        elif kind == "subtask":
            blocks.append(Text(text(part.get("prompt"))))
    return [User(tuple(blocks))] if blocks else []


def _response(message: Stored) -> list[Message]:
    """Convert a response of opencode to messages of Clew. The response consists of steps, each a call of the model:
    each step becomes one message, and its tool results another after it. A response that ended in an error gives an
    empty list, because opencode does not send it to the model either. But a response that the user stopped is converted
    if it has a text or a tool call."""
    error = values(message.info.get("error"))
    spoke = any(part.get("type") in ("text", "tool") for part in message.parts)
    if error and not (error.get("name") == "MessageAbortedError" and spoke):
        return []
    found: list[Message] = []
    model, stop = model_name(message.info), text(message.info.get("finish"))
    for step in _steps(message.parts):
        blocks: list[Block] = []
        results: list[Block] = []
        for part in step:
            kind = part.get("type")
            if kind == "text" and part.get("text"):
                blocks.append(Text(text(part.get("text"))))
            elif kind == "reasoning":
                blocks.append(thinking_block(part))
            elif kind == "tool":
                call, result = tool_blocks(part)
                blocks.append(call)
                results += [result] if result else []
        if blocks:
            found.append(Assistant(tuple(blocks), model, stop))
        if results:
            found.append(Tool(tuple(results)))
    return found


def _steps(parts: tuple[dict[str, Any], ...]) -> list[list[dict[str, Any]]]:
    steps: list[list[dict[str, Any]]] = [[]]
    for part in parts:
        if part.get("type") == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    return steps


def _model(session: Row, messages: list[Stored]) -> str:
    answered = [message.info for message in messages if message.role == "assistant"]
    return model_name(_json(session.get("model"))) or (model_name(answered[-1]) if answered else "")


def _data(row: Row) -> dict[str, Any]:
    try:
        return msgspec.json.decode(row["data"], type=dict[str, Any])
    except (msgspec.DecodeError, TypeError) as error:
        raise Corrupt(f"{row['id']} of opencode's conversation {row['session_id']} is damaged: {error}") from error


def _json(value: Any) -> dict[str, Any]:
    """Decode a database column that holds a JSON object; an empty dict if it holds none."""
    if not isinstance(value, str):
        return {}
    try:
        return values(msgspec.json.decode(value))
    except msgspec.DecodeError:
        return {}


VERSION = "1.18.33"
"""The version of opencode whose storage format is written."""
_AGENT = "build"
_QUIET = [{"permission": name, "pattern": "*", "action": "deny"} for name in ("question", "plan_enter", "plan_exit")]
"""Permission rules of a session that deny the tools which ask the user something, since nobody is there to answer.
`opencode run` sets the same rules."""
_NO_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
_ABORTED = "Tool execution aborted"
"""The error text that opencode stores for a tool call whose end it did not see."""


def session_row(key: str, title: str, created: int, updated: int) -> Row:
    """Return the database row of a new session under this key. Its working folder is not set yet. `created` and
    `updated` are times in milliseconds since 1970."""
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
    """Write the conversation in opencode's format, under this key, into a folder from which it can be installed.
    Returns what that format cannot hold of the conversation. If the conversation has dates, the same conversation and
    key give the same files. Raises `InvalidInput` if the key is not a session key of opencode."""
    writer = _Writer(conversation, checked(key))
    for at, message in enumerate(conversation.messages):
        writer.add(at, message)
    writer.save(folder)
    return tuple(writer.losses)


class _Writer:
    """Builds the database rows for a conversation that is written for opencode, message by message, and collects in
    `losses` what opencode cannot hold."""

    def __init__(self, conversation: Conversation, key: str) -> None:
        self.losses: list[Loss] = []
        self._conversation = conversation
        self._key = key
        latest = conversation.updated_at or conversation.created_at
        self._namer = Namer(key, int(latest.timestamp() * 1000) if latest else now())
        self._rows: list[tuple[str, Row]] = []
        self._prompt = ""
        """The id of the last user message. Each response that is added names this message as the one that it answers.
        """

    def add(self, at: int, message: Message) -> None:
        for index, block in enumerate(message.content):
            if _says_more(block):
                self.losses.append(Loss(at, index, "what a vendor said beside the block", "opencode cannot store it"))
        if isinstance(message, User):
            self._add_prompt(at, message.content)
        elif isinstance(message, System):
            self.losses.append(
                Loss(at, None, "instructions inside the conversation", "they become a message of the user")
            )
            self._add_prompt(at, message.content)
        elif isinstance(message, Assistant):
            self._add_response(at, message, self._results(at))
        elif isinstance(message, Tool):
            asked = self._asked_before(at)
            for index, block in enumerate(message.content):
                if not isinstance(block, ToolResult) or block.call_id not in asked:
                    self.losses.append(
                        Loss(at, index, "a result", "opencode stores results with their calls, and its call is missing")
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
        """Add a user message with this content to the session that is written; `at` is the index of the original
        message. No model is named in it, because the original one may not be set up on this machine; opencode then uses
        the model that is asked for, or its default."""
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
        self.losses.append(Loss(*at, "a block of a prompt", "opencode cannot store it there"))
        return {"type": "text", "text": "", "ignored": True}

    def _file_part(self, at: tuple[int, int], block: Image | File) -> dict[str, Any]:
        if isinstance(block, File) and block.data is not None and block.media_type.startswith("text/"):
            self.losses.append(
                Loss(*at, "a text file", "opencode stores texts as words: it becomes a text of the user")
            )
            name = f"{block.name}:\n" if block.name else ""
            return {"type": "text", "text": name + block.data.decode(errors="replace")}
        url = data_url(block)
        if url is None:
            self.losses.append(Loss(*at, "a file", "opencode needs its data or link, and a fitting media type"))
            return {"type": "text", "text": words_for(block)}
        return _file(block)

    def _results(self, at: int) -> dict[str, ToolResult]:
        """Return the tool results that follow the message with the index `at`, before the next response, as a dict by
        the id of the tool call."""
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
        provider, model = _model_row(message.model or self._conversation.model)
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
                self.losses.append(Loss(at, index, "a block of a response", "opencode cannot store it there"))
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
                Loss(*at, "arguments of a call", "opencode takes only objects: they are put into the field `input`")
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
    """Return whether this block has additional fields of a vendor that opencode cannot store. It can store them only in
    a thinking block, and only if they are from opencode itself or from OpenAI's Responses API."""
    extra = None if isinstance(block, Opaque) else block.extra
    return bool(extra) and not (isinstance(block, Thinking) and set(extra or ()) <= {"opencode", "openai-responses"})


def _file(block: Image | File) -> dict[str, Any]:
    name = {"filename": block.name} if isinstance(block, File) and block.name else {}
    return {"type": "file", "mime": block.media_type, **name, "url": data_url(block)}


def _model_row(name: str) -> tuple[str, str]:
    """Return the two values under which opencode stores a model: the vendor, such as `anthropic`, and the vendor's name
    of the model. In a name like `openai/gpt-…` both are given. For any other name, such as `claude-…`, the vendor is
    guessed from its beginning. Both values must be right, because opencode sends reasoning back only to the model that
    it came from."""
    provider, _, model = name.partition("/")
    if provider and model:
        return provider, model
    if name.startswith("claude"):
        return "anthropic", name
    return ("openai", name) if name.startswith(("gpt", "o1", "o3", "o4", "codex")) else ("unknown", name or "unknown")
